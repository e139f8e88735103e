"""A run killed at random moments, by every signal there is to kill it with, ends like one that was left alone.

One helper process imports torch once and forks a child for every try, so that thirty deaths take seconds.
"""

import json
import subprocess
import sys
import textwrap

HELPER = textwrap.dedent(
    """
    import json, os, random, signal, sys, time
    from pathlib import Path

    import torch
    from classgrad.data import gaussian_classes
    from classgrad.training import RunSpec, train

    KILLS = 30
    lots = random.Random(20230724)
    folder = Path(sys.argv[1])
    data = gaussian_classes([60, 12, 4], dimension=5, overlap=0.1, test_per_class=20)
    names = ["pcnsgd+r", "pcnsgd+o", "r-pcngd", "sgd"]
    report = {"kills": [], "differences": [], "exits": []}


    def spec(number):
        momentum = {"momentum": 0.9} if number % 2 else {}
        lazy = {"refresh": 7} if names[number % 4] == "pcnsgd+o" else {}
        return RunSpec("gaussian", names[number % 4], lr=0.02, steps=400, batch_size=19, seed=number, every=True,
                       grid="log:15", device="cpu", model_options={"hidden": [6]}, optimizer_options=momentum,
                       rule_options=lazy)


    def live(number):
        '''The child's life: go on from the checkpoint to the end, if it is let.'''
        try:
            train(spec(number), folder / str(number), data=data, resume=True, checkpoint_seconds=0.03)
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)


    number = 0
    while len(report["kills"]) < KILLS:
        child = os.fork()
        if child == 0:
            live(number)
        time.sleep(lots.uniform(0.01, 0.5))
        chosen = lots.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        os.kill(child, chosen)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        report["exits"].append(code)
        if code != 0:
            report["kills"].append(int(chosen))
        if code == 0 or len(report["kills"]) in (8, 16, 24, KILLS):  # on to the next algorithm, on slow machines too
            folder_run = train(spec(number), folder / str(number), data=data, resume=True)
            report["differences"].append(folder_run.differences(train(spec(number), data=data)))
            number += 1
    print(json.dumps(report))
    """
)


def test_thirty_deaths_leave_no_trace_in_the_record(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HELPER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["kills"]) == 30
    assert set(report["kills"]) == {2, 9, 15}
    assert set(report["exits"]) <= {0, 130, -9, -15, -2}, report["exits"]
    assert report["differences"]
    assert not any(report["differences"]), report["differences"]
