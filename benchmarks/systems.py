"""Systems side by side on one small budget: train each preset on the same rows, score it on the seven STS tasks.

    python -m benchmarks.systems --nli ../shared/data/nli/nli_for_simcse.csv --senteval ../shared/data/senteval

Every run uses the commands that a user would (``cse preset use``, ``cse train``, ``cse evaluate``). Finished runs are
kept in the output folder and not repeated; ``table.md`` and ``systems.svg`` are rewritten at the end. With ``--cxc``,
CxC-STS is measured too, and ``cse report OUT/records`` draws the domain shift.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from cse.evaluation.dev_facts import dev_of

SYSTEMS = (
    "promcse-kv-minilm",
    "promcse-hidden-minilm",
    "promcse-shared-minilm",
    "promcse-input-minilm",
    "scpcse-minilm",
    "d2cse-a-minilm",
    "d2cse-b-minilm",
    "d2cse-c-minilm",
    "d2cse-d-minilm",
    "simcse-small-minilm",
    "simcse-eh-minilm",
    "promcse-eh-small-minilm",
    "whitening-minilm",
    "flow-minilm",
)
BACKBONE = "sentence-transformers/all-MiniLM-L6-v2"
COMMAND = Path(sys.executable).with_name("cse")


def main() -> None:
    """Run the missing systems and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nli", type=Path, required=True, help="triplets, a CSV with three columns")
    parser.add_argument("--senteval", type=Path, required=True, help="SentEval's downstream folder")
    parser.add_argument("--cxc", type=Path, help="CSV of CxC-STS that includes the captions")
    parser.add_argument("--rows", type=int, default=7680, help="training triplets (60 steps of 128)")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, help="presets")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel runs, one thread each")
    parser.add_argument("--out", type=Path, default=Path(".cse/systems"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    prepared = args.out / f"prepared-{args.rows}"
    if not (prepared / "train.arrow").exists():
        (args.out / "dev").mkdir(exist_ok=True)  # empty: STS-B dev
        data = {"source": "files", "train_path": args.nli, "evaluation_path": args.senteval, "max_rows": args.rows}
        data["dev_path"] = args.out / "dev"
        params = args.out / "params.yaml"
        _call("preset", "use", args.systems[0], "--keep-data", "-p", params)
        _call("prepare", "-p", params, "--out", prepared, *(f"-sdata.{key}={value}" for key, value in data.items()))
    jobs = [("backbone", 0), *((name, seed) for seed in args.seeds for name in args.systems)]
    with ThreadPoolExecutor(args.jobs) as pool:
        runs = pool.map(lambda job: run(*job, prepared=prepared, args=args), jobs)
        for _ in tqdm(runs, total=len(jobs), unit="run"):
            pass
    table = as_table(args.out)
    (args.out / "table.md").write_text(table, encoding="utf-8")
    draw(args.out)
    print(table, end="")


def run(name: str, seed: int, *, prepared: Path, args: argparse.Namespace) -> None:
    """Train and score one preset, unless its result exists; a failure is printed and leaves no result."""
    label = name if name == "backbone" else f"{name}-{seed}"
    result, records = args.out / f"{name}-{seed}.json", args.out / "records"
    if result.exists() and (records / label / "record.json").exists():
        return
    folder = args.out / f"{name}-{seed}"
    folder.mkdir(exist_ok=True)
    measures = "sts,cxc" if args.cxc else "sts"
    data = ["--data", args.senteval, *(("--cxc", args.cxc) if args.cxc else ())]
    clock = time.monotonic()
    model: Path | str = folder / "checkpoint"
    try:
        if name == "backbone":
            model = BACKBONE
        elif not (folder / "checkpoint").exists():
            params = folder / "params.yaml"
            _call("preset", "use", name, "--keep-data", "-p", params)
            _call("train", "-p", params, f"-strain.seed={seed}", "--data", prepared, "--out", model)
        trained = time.monotonic() - clock
        scored = ["--json", folder / "scores.json", "--out", records]
        _call("evaluate", f"{label}={model}", "--suite", measures, *data, *scored)
    except RuntimeError as error:
        print(f"{name} (seed {seed}): {error}", file=sys.stderr)
        return
    (scores,) = json.loads((folder / "scores.json").read_text(encoding="utf-8")).values()
    facts = {} if name == "backbone" else json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))
    record = {"system": name, "seed": seed, "seconds": round(trained), "facts": facts, "scores": scores}
    result.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def as_table(out: Path) -> str:
    """Return all results of a folder as Markdown: mean of every task over seeds, and deviation of the average."""
    rows = []
    for name, runs in read_records(out).items():
        scores = [_scores(run) for run in runs]
        means = {task: statistics.mean(score[task] for score in scores) for task in scores[0]}
        deviation = f" ± {statistics.stdev(s['Avg.'] for s in scores):.2f}" if len(scores) > 1 else ""
        facts = runs[0]["facts"]
        found = [dev.value for run in runs if (dev := dev_of(run["facts"]))]
        mean_dev = f"{statistics.mean(found):.2f}" if found else ""
        label = f"{name} ({facts['generator']} generator)" if facts.get("generator") else name
        rows.append((means["Avg."], label, means, deviation, len(runs), mean_dev))
    rows.sort(reverse=True, key=lambda row: row[0])
    tasks = list(rows[0][2])
    lines = [_line(["system", *tasks, "seeds", "dev"]), _line(["---"] * (len(tasks) + 3))]
    for _, label, means, deviation, count, mean_dev in rows:
        cells = [f"{means[task]:.2f}" for task in tasks]
        lines.append(_line([label, *cells[:-1], cells[-1] + deviation, str(count), mean_dev]))
    return "\n".join(lines) + "\n"


def draw(out: Path) -> None:
    """Draw the averages against the frozen backbone: a bar for the mean over seeds, one dot per seed."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "cse"  # deterministic file
    scores = {name: [_scores(run)["Avg."] for run in runs] for name, runs in read_records(out).items()}
    (frozen,) = scores.pop("backbone")
    names = sorted(scores, key=lambda name: statistics.mean(scores[name]))
    figure, axes = plt.subplots(figsize=(8, 0.34 * len(names) + 1), layout="constrained")
    places = range(len(names))
    means = [statistics.mean(scores[name]) for name in names]
    axes.barh(places, [mean - frozen for mean in means], left=frozen, color="#0072B2", alpha=0.75)
    for place, name in zip(places, names, strict=True):
        axes.plot(scores[name], [place] * len(scores[name]), "o", color="#E69F00", markersize=4)
        axes.text(max(*scores[name], frozen) + 0.08, place, f"{means[place]:.2f}", va="center", fontsize=8)
    axes.axvline(frozen, color="#555555", linewidth=1)
    axes.text(frozen - 0.05, len(names) - 0.5, f"frozen backbone {frozen:.2f}", ha="right", va="bottom", fontsize=8)
    axes.set_yticks(list(places), [name.removesuffix("-minilm") for name in names])
    axes.set_xlim(min([*means, frozen]) - 1, max(means) + 0.8)
    axes.set_xlabel("Spearman * 100, average of the seven STS tasks")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out / "systems.svg", metadata={"Date": None})


def read_records(out: Path) -> dict[str, list[dict]]:
    """Return the results in a folder by system, one per seed."""
    records: dict[str, list[dict]] = {}
    for path in sorted(out.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "system" in record:
            records.setdefault(record["system"], []).append(record)
    return records


def _scores(record: dict) -> dict[str, float]:
    tasks = {name: task["all"] for name, task in record["scores"]["sts"].items()}
    return tasks | {"Avg.": record["scores"]["Avg."]["all"]}


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _call(*arguments: object) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [str(COMMAND), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:3])}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")


if __name__ == "__main__":
    main()
