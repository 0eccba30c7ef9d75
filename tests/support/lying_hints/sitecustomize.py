"""On the Python path of a service, its engine's hints name the experts that the gates like least, with full confidence.

For benchmarks: the adversary of prefetching. Every other process of the service is left as it is.
"""

import sys

if "mtp_daemon.engine" in sys.orig_argv:
    from mtp_daemon.engine import hints

    true_guess = hints.Lookahead.guess

    def guess(self, residual, beside):  # type: ignore[no-untyped-def]
        true_probes = self._probes
        self._probes = tuple((layer, lambda rows, probe=probe: 1.0 - probe(rows)) for layer, probe in true_probes)
        try:
            return true_guess(self, residual, beside)
        finally:
            self._probes = true_probes

    hints.Lookahead.guess = guess  # type: ignore[method-assign]
