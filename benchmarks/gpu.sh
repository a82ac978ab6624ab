#!/usr/bin/env bash
# What a GPU does, in some minutes: the rows of speed.csv that run on it, and what the presets
# that are meant for it cost at its rate. Writes benchmarks/gpu/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "no GPU is visible to torch")'
mkdir -p benchmarks/gpu
for preset in gpu paper locality; do
    python -m pe_utils.cost --preset "$preset" | tee "benchmarks/gpu/$preset.txt"
done
python benchmarks/speed.py ssdc_of_all_depths ssdc_over_gram rpi_estimand capture training \
    training_over_products growth
