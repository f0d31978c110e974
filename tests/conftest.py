"""Settings that hold for every test: how much hypothesis tries, and where.

`dev` is quick and looks somewhere new each time; `ci` tries more and is the same on every run, so
a red build is red again. CI=true chooses `ci`; HYPOTHESIS_PROFILE names either of them, or `deep`
for a long hunt by hand.
"""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: two shared cores make the time of one example say nothing about the code.
settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("ci", max_examples=200, deadline=None, print_blob=True, derandomize=True)
settings.register_profile("deep", max_examples=5_000, deadline=None, print_blob=True)

_ON_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if _ON_CI else "dev"))
