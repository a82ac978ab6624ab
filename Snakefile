# The whole grid of a preset: runs -> measurements -> chapters -> book; only what is missing.
#   snakemake                                     this machine (profiles/default)
#   snakemake --config preset=locality_laptop     another preset
#   snakemake --workflow-profile profiles/slurm   a Slurm cluster, from its login node
#   snakemake -n                                  what would run, and why
import glob
import os
import sys

sys.path.insert(0, workflow.basedir)
from pe_utils.config import GRIDS, grid

PRESET = config.get("preset", "laptop")
RUNS = {run.run_id: run for run in grid(PRESET)}
SEEDS = GRIDS[PRESET]["seeds"]
REPORTS = f"runs/reports/{PRESET}"
PROTOCOLS = GRIDS[PRESET].get("protocols", ())
SECOND_PART = len(PROTOCOLS) > 0
FIRST = ["0[1-6]", "1[0-2]"]  # those that measure the grid's runs, and train no others
WANTED = FIRST if not SECOND_PART else ["2"] if len(PROTOCOLS) == 8 else ["20"]  # 21-23: all eight
CHAPTERS = sorted(
    path.split("/")[-1].removesuffix(".py")
    for wanted in WANTED
    for path in glob.glob(f"notebooks/{wanted}*.py")
)
if os.environ.get("PE_HOME"):
    sys.exit("the workflow's files lie in the repository: unset PE_HOME")


def weights(seeds):
    return [f"weights/{PRESET}/{name}.safetensors" for name, run in RUNS.items() if run.seed in seeds]


def papermill(seeds):
    """The command of a chapter for these seeds, up to its output."""
    return (
        "python -m pe_utils.launch {resources.gpu} papermill --no-progress-bar "
        "book/chapters/{wildcards.chapter}.ipynb {output:q} "
        f"-y '{{{{preset: {PRESET}, seeds: {seeds}}}}}' > {{log:q}} 2>&1"
    )


wildcard_constraints:
    run=r"[\w+-]+",
    chapter=r"\w+",
    seed=r"\d+",


localrules: all, book


rule all:
    input:
        weights(SEEDS),
        expand(REPORTS + "/{chapter}.ipynb", chapter=CHAPTERS),
        "book/_build/html/index.html",


# Weights depend on nothing but their config, whose hash is in their name: no input, no trigger.
rule train:
    output: "weights/" + PRESET + "/{run}.safetensors"
    log: "runs/logs/" + PRESET + "/{run}.log"
    params:
        condition=lambda wc: RUNS[wc.run].condition,
        seed=lambda wc: RUNS[wc.run].seed,
        protocol=lambda wc: RUNS[wc.run].protocol,
    threads: 1
    resources: mem_mb=2000, runtime=120, gpu=0
    shell:
        "python -m pe_utils.launch {resources.gpu} pe_utils.train --preset {PRESET} --jobs 1 "
        "--condition {params.condition} --seed {params.seed} --protocol={params.protocol} "
        "> {log:q} 2>&1"


# A chapter for one seed: measures what that seed lacks, so that the seeds run side by side.
rule measure:
    input: lambda wc: weights([int(wc.seed)])
    output: REPORTS + "/seeds/{chapter}-{seed}.ipynb"
    log: "runs/logs/" + PRESET + "/{chapter}-{seed}.log"
    threads: 1
    resources: mem_mb=4000, runtime=240, gpu=0
    shell: papermill("[{wildcards.seed}]")


rule chapter:
    input:
        weights(SEEDS) if SECOND_PART
        else expand(REPORTS + "/seeds/{{chapter}}-{seed}.ipynb", seed=SEEDS)
    output: REPORTS + "/{chapter}.ipynb"
    log: "runs/logs/" + PRESET + "/{chapter}.log"
    threads: 1
    resources: mem_mb=4000, runtime=240, gpu=0
    shell: papermill(list(SEEDS))


rule book:
    input:
        "_config.yml", "_toc.yml", glob.glob("book/*.md"), glob.glob("book/*.bib"),
        glob.glob("book/_assets/*"), glob.glob("book/chapters/*.ipynb"), glob.glob("benchmarks/*.csv")
    output: "book/_build/html/index.html"
    log: "runs/logs/book.log"
    shell: "jupyter-book build book --all -W --keep-going > {log:q} 2>&1"
