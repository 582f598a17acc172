"""Behavioural checks that hold at every level: what a user may rely on whatever the mechanism.

`await check("jail")` gives a `Report`; each check is also a test of its own. A backend that is not part of this
package is checked in the same way, by its name.
"""

from __future__ import annotations

from kooi.proof.conformance.report import Checked, Report, check, check_one, names

__all__ = ["Checked", "Report", "check", "check_one", "names"]
