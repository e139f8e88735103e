"""Training: algorithms as data, one loop for all of them, runs that survive being killed.

A :class:`RunSpec` says what a run is; :func:`train` makes it and returns its record
(:class:`classgrad.dynamics.Run`); :func:`load_trained` gives the model. :func:`algorithm` looks up a row of sampler,
rule and step sizes in :data:`ALGORITHMS`, :func:`schedule` a step size in :data:`SCHEDULES`.
"""

from classgrad.training._algorithms import ALGORITHMS, SEVEN, Algorithm, algorithm
from classgrad.training._folder import MODEL_FILE
from classgrad.training._loop import Progress
from classgrad.training._models import make_model
from classgrad.training._numerics import resolve_device
from classgrad.training._pool import Job, train_all
from classgrad.training._schedules import SCHEDULES, Moment, Schedule, schedule
from classgrad.training._signals import Interrupted
from classgrad.training._spec import RunSpec
from classgrad.training._train import load_data, train
from classgrad.training._trained import TrainedModel, load_trained

__all__ = [
    "ALGORITHMS",
    "MODEL_FILE",
    "SCHEDULES",
    "SEVEN",
    "Algorithm",
    "Interrupted",
    "Job",
    "Moment",
    "Progress",
    "RunSpec",
    "Schedule",
    "TrainedModel",
    "algorithm",
    "load_data",
    "load_trained",
    "make_model",
    "resolve_device",
    "schedule",
    "train",
    "train_all",
]
