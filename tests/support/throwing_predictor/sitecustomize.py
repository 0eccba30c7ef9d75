"""On the Python path of a loader, its predictor throws after twenty forecasts. For tests."""

import sys

if "mtp_loader.service" in sys.orig_argv:
    from mtp_loader.predict.blend import Predictor

    true_wanted, asked = Predictor.wanted, 0

    def wanted(self, budget, skip=()):  # type: ignore[no-untyped-def]
        global asked
        asked += 1
        if asked > 20:
            raise ValueError("thrown on purpose")
        return true_wanted(self, budget, skip)

    Predictor.wanted = wanted  # type: ignore[method-assign]
