"""A suite's report as one page that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

from html import escape

from kooi.contract.text import escape_terminal
from kooi.proof.attacks.model import Finding
from kooi.proof.attacks.report import counts, remarks
from kooi.proof.attacks.runner import SuiteReport

_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1b1f24;
       background: #fff }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; vertical-align: top; padding: .45rem .7rem; border-bottom: 1px solid #d8dee4 }
.prevented, .contained { color: #116329 } .escaped { color: #a40e26; font-weight: 600 }
.vacuous { color: #7d4e00 } .surprise { outline: 2px solid #a40e26 }
small { color: #57606a; display: block } .scroll { overflow-x: auto }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 } th, td { border-color: #30363d } small { color: #9198a1 }
  .prevented, .contained { color: #56d364 } .escaped { color: #ff7b72 } .vacuous { color: #e3b341 }
}
"""
_MEANING = """\
<p><b>prevented</b>: it was stopped, and something proves that it was. <b>contained</b>: it had its way, but only in a
machine of its own. <b>escaped</b>: it did the harm. <b>vacuous</b>: nothing was proved. Every program has a harmless
twin that must work in the same sandbox, and must do its harm with the sandbox off. A frame marks what is not as
documented for the level.</p>
"""


def page(report: SuiteReport) -> str:
    """Return the page."""
    heads = "".join(f"<th>{_text(level)}</th>" for level in report.levels)
    names = dict.fromkeys((f.program, f.title) for f in report.findings)
    rows = "".join(_row(report, name, title) for name, title in names)
    totals = "".join(f"<li>{_text(line)}</li>" for line, _ in remarks(report))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>kooi attack: {_text(report.suite)}</title><style>{_STYLE}</style>"
        f"<h1>Hostile programs: the {_text(report.suite)} suite</h1><p>{_summary(report)}</p>{_MEANING}"
        f'<div class="scroll"><table><thead><tr><th>program</th>{heads}<th>with the sandbox off</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div><ul>{totals}</ul></html>\n"
    )


def _summary(report: SuiteReport) -> str:
    parts = []
    for level in report.levels:
        found = counts(report, level)
        stopped = found["prevented"] + found["contained"]
        parts.append(f"<b>{_text(level)}</b> stopped {stopped} of {sum(found.values())}")
    return ", ".join(parts) + f" in {report.seconds:.0f} s."


def _row(report: SuiteReport, name: str, title: str) -> str:
    cells = "".join(_cell(report.at(name, level)) for level in report.levels)
    harm = report.controls.get(name)
    return (
        f"<tr><td><b>{_text(name)}</b><small>{_text(title)}</small></td>{cells}"
        f"<td>{_text(harm or 'does no harm')}</td></tr>"
    )


def _cell(finding: Finding) -> str:
    surprise = "" if finding.as_expected else " surprise"
    left = f"<small>left behind: {_text(', '.join(finding.residue))}</small>" if finding.residue else ""
    return f'<td class="{finding.outcome}{surprise}">{finding.outcome}<small>{_text(finding.reason)}</small>{left}</td>'


def _text(text: str) -> str:
    return escape(escape_terminal(text))
