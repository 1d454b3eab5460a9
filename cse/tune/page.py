"""A sweep as a self-contained HTML page: best settings, parallel coordinates, importance, curves, all trials."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from importlib.resources import files
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import click
from jinja2 import Environment
from markupsafe import Markup

from cse.errors import shown_on_page
from cse.evaluation.dev_facts import dev_label
from cse.outputs import publish_file
from cse.settings.document import yaml_value
from cse.settings.spaces import Dimension
from cse.tune.outcome import PAGE, Sweep, TrialRecord

_COLOUR = {"finished": "#2f6db2", "stopped": "#b0b7c3", "failed": "#c0392b"}


def write_page(sweep: Sweep) -> None:
    """Write ``sweep.html`` to the sweep's folder; without plotly, say how to have it."""
    if not find_spec("plotly"):
        click.echo(f"no {PAGE}: pip install 'cse[boards]', then the same command draws it", err=True)
        return
    from plotly.offline import get_plotlyjs

    best = sweep.best
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=shown_on_page)
    template = environment.from_string(files("cse.tune").joinpath("sweep.html").read_text(encoding="utf-8"))
    text = template.render(
        sweep=sweep,
        best=best,
        values={key: yaml_value(value) for key, value in best.values.items()},
        pictures=_pictures(sweep),
        script=Markup(get_plotlyjs()),
        count={state: sum(trial.state == state for trial in sweep.trials) for state in _COLOUR},
        yaml=yaml_value,
    )
    with publish_file(sweep.folder / PAGE) as target:
        target.write_text(text, encoding="utf-8")


def _pictures(sweep: Sweep) -> list[tuple[str, str, Markup]]:
    """Return title, note and HTML of each figure; a figure that cannot be drawn says why."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = study_of(sweep)
        drawn: list[tuple[str, str, Callable[[], Any]]] = [
            (
                "Values and scores",
                "Each line is a trial with a score; darker is better. Drag along an axis to select trials.",
                lambda: _parallel(sweep),
            ),
            (
                "Importance of settings",
                "Share of the dev score's variance explained by each setting (fANOVA), over finished trials.",
                lambda: _importance(study),
            ),
            (
                "Learning curves",
                "Best dev score so far over the course of training; grey trials were stopped early.",
                lambda: _curves(sweep, study),
            ),
            (
                "Optimisation history",
                "Each trial's dev score in order, and the best finished so far; grey trials were stopped early.",
                lambda: _history(sweep),
            ),
        ]
        return [(title, note, _html(draw)) for title, note, draw in drawn]


def _html(draw: Callable[[], Any]) -> Markup:
    try:
        figure = draw()
    except (ValueError, RuntimeError) as error:
        return Markup("<p>Cannot be drawn: {}</p>").format(error)
    figure.update_layout(title=None, template="plotly_white", margin={"t": 30, "r": 30}, font={"size": 13}, height=420)
    return Markup(figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False}))


def study_of(sweep: Sweep) -> Any:
    """Return an Optuna study of the trials that have a score; those that did not finish count as pruned."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    spaces = {part.key: _distribution(part, sweep) for part in sweep.dimensions}
    for trial, score in _scored(sweep):
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.COMPLETE if trial.state == "finished" else optuna.trial.TrialState.PRUNED,
                params=trial.config,
                distributions=spaces,
                value=score,
                intermediate_values=dict(trial.curve),
            )
        )
    return study


def _distribution(part: Dimension, sweep: Sweep) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if part.values:
        tried = [trial.config[part.key] for trial in sweep.trials]  # a second step adds values
        return CategoricalDistribution(tuple(dict.fromkeys([*part.values, *tried])))
    # values were rounded after sampling
    tried = [part.low, part.high, *(trial.config[part.key] for trial in sweep.trials)]
    kind = IntDistribution if part.whole else FloatDistribution
    return kind(min(tried), max(tried), log=part.log)


def _importance(study: Any) -> Any:
    import optuna

    if len({trial.value for trial in study.get_trials(states=[optuna.trial.TrialState.COMPLETE])}) < 3:
        raise ValueError("this needs three finished trials with different scores.")
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    figure = optuna.visualization.plot_param_importances(study, evaluator=evaluator, target_name="dev")
    return figure.update_traces(marker_color=_COLOUR["finished"])


def _axis(sweep: Sweep) -> str:
    return f"{dev_label(sweep.measure)} * 100"


def _scored(sweep: Sweep) -> list[tuple[TrialRecord, float]]:
    return [(trial, trial.score) for trial in sweep.trials if trial.score is not None]


# Optuna's parallel coordinates and optimisation history leave out stopped trials
def _parallel(sweep: Sweep) -> Any:
    from plotly.graph_objects import Figure, Parcoords

    scored = _scored(sweep)
    scores = [score for _, score in scored]
    axes: list[dict[str, Any]] = []
    for part in sweep.dimensions:
        tried = [trial.config[part.key] for trial, _ in scored]
        if part.log:
            shown = [digit * 10.0**power for power in range(-12, 6) for digit in (1, 2, 5)]
            shown = [value for value in shown if min(tried) <= value <= max(tried)]
            axes.append(
                {
                    "label": f"{part.key} (log)",
                    "values": [math.log10(value) for value in tried],
                    "tickvals": [math.log10(value) for value in shown],
                    "ticktext": [f"{value:.3g}" for value in shown],
                }
            )
        elif part.values:  # evenly spaced
            listed = sorted(set(tried), key=lambda value: (str(type(value)), value))
            axes.append(
                {
                    "label": part.key,
                    "values": [listed.index(value) for value in tried],
                    "tickvals": list(range(len(listed))),
                    "ticktext": [str(value) for value in listed],
                }
            )
        else:
            axes.append({"label": part.key, "values": tried})
    axes.append({"label": "dev", "values": scores})
    shades = [[0.0, "#c3cfdf"], [1.0, "#0b3d78"]]
    line = {"color": scores, "colorscale": shades, "showscale": True}
    return Figure(Parcoords(line=line, dimensions=axes, labelside="bottom"))


def _history(sweep: Sweep) -> Any:
    from plotly.graph_objects import Figure, Scatter

    scored = _scored(sweep)
    figure = Figure()
    figure.add_trace(
        Scatter(
            x=[trial.number for trial, _ in scored],
            y=[score for _, score in scored],
            mode="markers",
            text=[trial.label for trial, _ in scored],
            marker={"color": [_COLOUR[trial.state] for trial, _ in scored], "size": 9},
        )
    )
    finished = [(trial.number, score) for trial, score in scored if trial.state == "finished"]
    best = accumulate((score for _, score in finished), max)
    figure.add_trace(
        Scatter(
            x=[number for number, _ in finished],
            y=list(best),
            mode="lines",
            line={"color": _COLOUR["finished"], "shape": "hv"},
            hoverinfo="skip",
        )
    )
    figure.update_layout(xaxis_title="trial", yaxis_title=_axis(sweep), showlegend=False)
    return figure


def _curves(sweep: Sweep, study: Any) -> Any:
    import optuna

    figure = optuna.visualization.plot_intermediate_values(study)
    drawn = [trial for trial, _ in _scored(sweep) if trial.curve]
    for trace, trial in zip(figure.data, drawn, strict=True):
        width, opacity = (3, 1.0) if trial is sweep.best else (1.2, 0.75)
        line = {"color": _COLOUR[trial.state], "width": width}
        trace.update(name=f"{trial.number}: {trial.label}", line=line, marker={"maxdisplayed": 0}, opacity=opacity)
    figure.data = sorted(
        figure.data, key=lambda trace: trace.line.color == _COLOUR["finished"]
    )  # draw finished trials on top
    return figure.update_layout(xaxis_title="% of the training", yaxis_title=_axis(sweep), hovermode="closest")
