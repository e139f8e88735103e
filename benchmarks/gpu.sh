#!/usr/bin/env bash
# The figures of the docs that need a GPU, stage by stage:
#
#     bash benchmarks/gpu.sh OUT [tests] [step] [scale] [loop] [runs] [seeds] [lazy] [first-run]
#
# What a stage prints goes to OUT/STAGE.txt as well. One that was ended goes on with the same command: rows, runs and
# records that are under OUT are not made again. LIMIT=600 ends each stage after so many seconds (rows and runs under way
# are lost or, in the first run, saved); CIFAR names the folder with CIFAR-10, which lazy and first-run need.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
out=$1
shift
mkdir -p "$out"
limit=${LIMIT:-3600}
ends=$((SECONDS + limit))

run() { timeout -s KILL $((ends > SECONDS ? ends - SECONDS : 1)) python3 "$@"; }
left() { echo $((ends - SECONDS - 40)); } # a row or a start of processes may take that long

tests() { run -m pytest -q -m gpu -p no:cacheprovider tests/unit/{gradients,training,dynamics,data}; }

step() {
    local go rivals=fused,captured,plain+capt,split,autogram,autojac
    local what="--tf32 --models simple_cnn,resnet18,transformer,vgg16 --limit 1"
    run benchmarks/step_cost.py $what --contenders $rivals --seconds 0.3 --json "$out/step.json" --budget "$(left)"
    # the host's part varies from process to process
    for go in 1 2 3; do
        run benchmarks/step_cost.py $what --contenders fused --seconds 0.4 --json "$out/eager-$go.json" \
            --budget "$(left)"
    done
}

scale() {
    run benchmarks/scale.py --tf32 --json "$out/scale.json" --models mlp,simple_cnn --seconds 0.1 --budget "$(left)" \
        --only classes,batch,parameters
    run benchmarks/scale.py --tf32 --json "$out/scale.json" --models resnet18,transformer --seconds 0.1 \
        --budget "$(left)" --only classes
}

loop() {
    run benchmarks/loop_rate.py --part rate --precision tf32 --compile --channels-last --json "$out/loop.json"
    run benchmarks/loop_rate.py --part formats --only bi7a/simple_cnn/gd,bi7a/simple_cnn/pcnsgd+o --json "$out/loop.json"
}

runs() {
    local data algorithm
    for algorithm in gd pcngd; do
        run benchmarks/loop_rate.py --part runs --fraction 1 --vgg-precisions bf16 --compile \
            --only bi7a/vgg16/$algorithm --json "$out/runs-vgg16-$algorithm.json"
        for data in bi7a bi60; do
            run benchmarks/loop_rate.py --part runs --fraction 1 --precision bf16 --compile --channels-last \
                --only $data/simple_cnn/$algorithm --json "$out/runs-$data-$algorithm.json"
        done
    done
}

seeds() { run benchmarks/loop_rate.py --part seeds --precision tf32 --steps 2000 --seeds 1,4 --json "$out/seeds.json"; }

lazy() {
    run benchmarks/lazy_norms.py price --tf32 --models simple_cnn,resnet18 --layouts 2x64,10x13,100x2 --seconds 1
    run benchmarks/lazy_norms.py truth --problems bi7a --algorithms pcngd --data-dir "$CIFAR" --steps 400 --look 7 \
        --ways 2 --out "$out/lazy"
}

first-run() {
    local stage how="--precision tf32 --compile --channels-last --workers 6 --grid-scale 0.2"
    # the rates of "+O" are nearer to each other than one seed can tell
    for stage in grid "grid --algorithms sgd+o,pcnsgd+o --grid-seeds 3" runs times; do
        run benchmarks/first_run.py $stage --out "$out/first-run" --data-dir "$CIFAR" $how --budget "$(left)"
    done
    run benchmarks/first_run.py pack --out "$out/first-run" --packed "$out/first-run.tar"
}

for stage in "$@"; do
    echo "== $stage"
    "$stage" 2>&1 | tee -a "$out/$stage.txt"
done
