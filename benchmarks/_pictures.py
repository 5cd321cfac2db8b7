"""The pictures of docs/pictures that show measurements, each drawn from benchmarks/results/ (extra `plots`).

`draw` is what `python -m benchmarks` ends with. A picture needs nothing but the results: figures too long for a table
are under the key `drawn`, which docs/benchmarks.md leaves out.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
DPI = 150
BLUE, OCHRE, RED, GREEN, GREY = "#2f6f9f", "#b0821c", "#a6453c", "#4d8a57", "#7a858d"
LOOK = {
    "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e3e7ea",
    "axes.axisbelow": True, "legend.frameon": False, "figure.constrained_layout.use": True,
}  # fmt: skip
Results = Mapping[str, Mapping[str, Any]]


def draw(results: Results, folder: Path = FOLDER) -> list[str]:
    """Draws every picture whose results are there; the names of those drawn, none without matplotlib."""
    if find_spec("matplotlib") is None:
        return []
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, (needs, size, paint) in PICTURES.items():
        if not all(needed in results for needed in needs):
            continue
        with rc_context(LOOK):
            figure = Figure(figsize=size)
            paint(figure, *(results[needed] for needed in needs))
            figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
        drawn.append(f"{name}.png")
    return drawn


def depth_quality(figure: Any, depth: Mapping[str, Any], pareto: Mapping[str, Any]) -> None:
    """Left: what the static plan costs over its whole range. Right: policies against each other near full depth."""
    whole, near = figure.subplots(1, 2)
    rows = depth["depths"]
    layers = [row["depth run"] for row in rows]
    whole.plot(layers, [row["top-1"] for row in rows], "o-", color=BLUE, label="same first choice as full depth")
    whole.plot(layers, [row["time"] for row in rows], "s--", color=OCHRE, label="time per token")
    whole.set(title="The plan, over its range", xlabel="layers run of 30", ylabel="share of full depth", ylim=(0, 1.08))
    whole.legend(loc="lower right")
    marks = {"plan": ("s-", BLUE), "random": ("x--", GREY), "hybrid": ("D-", GREEN), "signals": ("o", RED)}
    others = cycle(("v", "^", "P", "*", "<"))
    for name in dict.fromkeys(row["policy"] for row in pareto["pareto"] if row["policy"] != "full"):
        points = sorted((row["depth"], row["nats"]) for row in pareto["pareto"] if row["policy"] == name)
        mark, colour = marks.get(name) or (next(others), OCHRE)
        near.plot(*zip(*points, strict=True), mark, color=colour, label=name, markersize=5)
    near.set(title="Policies, near full depth", xlabel="mean layers of 30", ylabel="nats lost per token", ylim=0)
    near.legend(ncols=2, loc="upper right")


def layers(figure: Any, depth: Mapping[str, Any]) -> None:
    """Which branches the plan runs at each budget."""
    axes = figure.subplots()
    rows = depth["drawn"]["ran"]
    shares = [[(int(a) + int(m)) / 2 for a, m in zip(row["attention"], row["mlp"], strict=True)] for row in rows]
    axes.imshow(shares, cmap="Blues", vmin=-0.15, vmax=1.25, aspect="auto", interpolation="nearest")
    for y, row in enumerate(rows):
        for x, (attention, mlp) in enumerate(zip(row["attention"], row["mlp"], strict=True)):
            if attention != mlp:
                axes.text(x, y, "a" if attention == "1" else "m", ha="center", va="center", fontsize=7, color="#1c2328")
    wide = len(rows[0]["mlp"])
    axes.set_xticks([x - 0.5 for x in range(1, wide)], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(rows))], minor=True)
    axes.grid(visible=False)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set(
        title="Layers by budget: dark runs, a attention only, m MLP only, light skipped",
        xlabel="layer", ylabel="layers run", yticks=range(len(rows)), xticks=range(0, wide, 5),
        yticklabels=[f"{row['depth']:g}" for row in rows],
    )  # fmt: skip


def cost_quality(figure: Any, result: Mapping[str, Any]) -> None:
    """How much of the gap between a weak and a strong model is recovered by sending so many questions to the strong."""
    colours = {"router (would weak do as well?)": BLUE, "router (depth head)": GREEN, "prompt length": OCHRE,
               "oracle": RED, "random": GREY}  # fmt: skip
    for axes, (name, curves) in zip(figure.subplots(1, 2, sharey=True), result["drawn"].items(), strict=True):
        for router, shares in curves.items():
            steps = [i / (len(shares) - 1) for i in range(len(shares))]
            axes.plot(steps, shares, label=router, color=colours.get(router), linewidth=1.5)
        axes.set(title=name.upper(), xlabel="share of questions sent to the strong model", ylim=(-0.05, 1.3))
    figure.axes[0].set_ylabel("share of the gap recovered")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)


def reliability(figure: Any, result: Mapping[str, Any]) -> None:
    """Is the router right as often as it says; which routes it takes for which."""
    left, right = figure.subplots(1, 2)
    bins, confusion = result["drawn"]["reliability"], result["drawn"]["confusion"]
    said, true, counts = zip(*bins, strict=True)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    left.plot(said, true, color=BLUE, linewidth=1)
    left.scatter(said, true, s=[8 + 300 * n / sum(counts) for n in counts], color=BLUE, zorder=3, clip_on=False)
    left.set(title="Reliability (larger: more requests)", xlabel="predicted probability", ylabel="share right",
             xlim=(0.2, 1), ylim=(0, 1.02))  # fmt: skip
    names, rows = confusion["routes"], confusion["counts"]
    shares = [[count / max(1, sum(row)) for count in row] for row in rows]
    right.imshow(shares, cmap="Blues", vmin=0, vmax=1.2)
    right.grid(visible=False)
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    right.set(title="Route taken, in % of the row", xlabel="routed to", ylabel="is", xticks=range(len(names)),
              xticklabels=names, yticks=range(len(names)), yticklabels=names)  # fmt: skip
    for y, row in enumerate(shares):
        for x, share in enumerate(row):
            right.text(x, y, f"{100 * share:.1f}", ha="center", va="center", color="white" if share > 0.5 else "black")


def agents(figure: Any, result: Mapping[str, Any]) -> None:
    """The same turns by an agent that calls the model for each, and by the routed one."""
    kinds = dict.fromkeys(name.rsplit(", ", 1)[0] for name in result["by kind"])
    shown = [*(kind for kind in kinds if kind != "all"), "all"]
    sides = figure.subplots(1, 3, sharey=True)
    for axes, (title, key) in zip(sides, (("Mean time, ms", "mean ms"), ("Layer-tokens a turn", "layer-tokens"),
                                          ("Right answers, %", "right")), strict=True):  # fmt: skip
        for shift, (agent, colour) in ((-0.19, ("unrouted", GREY)), (0.19, ("routed", BLUE))):
            values = [_number(result["by kind"][f"{kind}, {agent}"][key]) for kind in shown]
            bars = axes.barh([y + shift for y in range(len(shown))], values, 0.36, color=colour, label=agent)
            axes.bar_label(bars, [_short(value) for value in values], padding=2, fontsize=7)
            for y, value in enumerate(values):
                if value != value and agent == "routed":
                    axes.text(0, y, " not judged", va="center", fontsize=7, color=GREY)
        axes.set(title=title, yticks=range(len(shown)), yticklabels=shown)
        axes.margins(x=0.16)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    sides[0].invert_yaxis()
    figure.legend(*sides[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def _number(value: object) -> float:
    """A share "7/25" as a percentage, a number as it is, else not a number: nothing is drawn."""
    if isinstance(value, str):
        right, _, of = value.partition("/")
        return 100 * int(right) / int(of) if of else float("nan")
    return float(str(value))


def _short(value: float) -> str:
    return "" if value != value else f"{value:,.0f}"


Painter = Callable[..., None]
PICTURES: Mapping[str, tuple[tuple[str, ...], tuple[float, float], Painter]] = {
    "pareto": (("depth", "pareto"), (8, 3.4), depth_quality),
    "layers": (("depth",), (8, 2.5), layers),
    "router_cost": (("router_cost",), (8, 3.5), cost_quality),
    "router_reliability": (("router",), (8, 3.7), reliability),
    "agent_flow": (("agent_flow",), (8, 3.6), agents),
}
