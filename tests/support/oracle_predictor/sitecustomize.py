"""On the Python path of a loader, its predictor knows the routing: that of the recording that `MTPD_ORACLE` names.

For tests: the best of all predictors. The same prompts must be asked in the same order as when it was recorded.
"""

import os
import sys

if "mtp_loader.service" in sys.orig_argv and "MTPD_ORACLE" in os.environ:
    from pathlib import Path

    from mtp_loader.policy.interface import layer_of
    from mtp_loader.predict.blend import Predictor
    from mtp_loader.replay.recording import read_recording

    trace = read_recording(Path(os.environ["MTPD_ORACLE"]))
    keys_of = {forward.step: [key for event in forward.events for key in event.keys] for forward in trace.forwards}

    def wanted(self, budget, skip=()):  # type: ignore[no-untyped-def]
        near = range(1, self._ahead + 1)
        coming = [key for key in keys_of.get(self._step, ()) if self.ahead(layer_of(key)) in near and key not in skip]
        return [(key, 1.0) for key in coming[:budget]]

    Predictor.wanted = wanted  # type: ignore[method-assign]
