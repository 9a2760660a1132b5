"""The look of a simulation's report: light or dark as the reader's system is, one colour per cause and policy."""

from __future__ import annotations

STYLESHEET = """
:root { color-scheme: light dark; --ink: #1d2733; --faint: #66727f; --paper: #fff; --rule: #d6dce2; --wash: #f4f6f8;
  --steps: #4c78a8; --transition: #d98a00; --redone: #d1495b; --restart: #8a5fb5; --out-of-memory: #8f1d2c;
  --paused: #9aa3ab;
  --p0: #2f6db5; --p1: #d1661a; --p2: #2c8c57; --p3: #a8479b; --p4: #8a6d00; --p5: #c2374a; --p6: #4aa3c7; --p7: #6b6b6b }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --faint: #98a4b0; --paper: #14191f; --rule: #333d47;
  --wash: #1c232b; --steps: #6fa3d8; --transition: #f0b04a; --redone: #ee7583; --restart: #b794dd; --out-of-memory: #ff4d5f;
  --paused: #6f7983; --p0: #78aef0; --p1: #f09a58; --p2: #63c78f; --p3: #da86cf; --p4: #d1b54a; --p5: #f07f8d; --p6: #86d0ee;
  --p7: #b0b0b0 } }
* { box-sizing: border-box }
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.2rem; margin-top: 2.4rem } h3 { font-size: 1rem }
p { max-width: 52rem } .faint { color: var(--faint) }
svg { display: block; width: 100%; height: auto } svg text { font-size: 12px; fill: var(--faint) }
.axis { stroke: var(--faint) } .grid { stroke: var(--rule); stroke-width: .6 }
.area { fill: var(--steps); opacity: .45 } .line { fill: none; stroke-width: 1.8 }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .88rem; margin: .6rem 0 }
th, td { padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule) }
th { color: var(--faint); font-weight: 600; white-space: nowrap } td.number, th.number { text-align: right }
.key { display: inline-block; margin-right: 1.1rem; white-space: nowrap }
.key::before { content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px;
  background: var(--colour) }
details { margin: .6rem 0 } summary { cursor: pointer }
.fill { fill: var(--colour) } .line { stroke: var(--colour) }
.steps { --colour: var(--steps) } .transition { --colour: var(--transition) } .redone { --colour: var(--redone) }
.restart { --colour: var(--restart) } .out_of_memory { --colour: var(--out-of-memory) } .paused { --colour: var(--paused) }
.p0 { --colour: var(--p0) } .p1 { --colour: var(--p1) } .p2 { --colour: var(--p2) } .p3 { --colour: var(--p3) }
.p4 { --colour: var(--p4) } .p5 { --colour: var(--p5) } .p6 { --colour: var(--p6) } .p7 { --colour: var(--p7) }
"""
"""Of the page; classes are those that nereus/sim/charts.py and report.py write."""

NUM_COLOURS = 8
"""Policies that have a colour of their own, p0 to p7: as many as there are policies."""
