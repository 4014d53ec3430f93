"""The exercises of all lessons and the failure labs, one module per lesson and lab."""

from __future__ import annotations

from importlib import import_module

from cflkit.course.exercises.base import Exercise, Explain, Implement, Predict

__all__ = ["LESSONS", "Exercise", "Explain", "Implement", "Predict", "every", "find"]

# The modules, by the number of the lesson or lab, with which the ids of exercises begin
LESSONS = {
    "00": "start_here",
    "01": "federated_averaging",
    "02": "clients_disagree",
    "03": "ocfl",
    "04": "sattler_and_briggs",
    "05": "emd_cfl",
    "06": "fedcref",
    "07": "explanations",
    "08": "tutorial",
    "09": "map_of_the_methods",
    "10": "privacy_and_change",
    "90": "ledger",
    "L1": "labs_data",
    "L2": "labs_clusters",
    "L3": "labs_evaluation",
}


def of_lesson(number: str) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson in their order, such as those of lesson ``03``."""
    module = import_module(f"cflkit.course.exercises.{LESSONS[number]}")
    exercises: tuple[Exercise, ...] = module.EXERCISES
    return exercises


def every() -> list[Exercise]:
    """Return the exercises of all lessons."""
    return [exercise for number in LESSONS for exercise in of_lesson(number)]


def find(id: str) -> Exercise:
    """Return the exercise with an id, such as ``03.2``.

    Raises
    ------
    ValueError
        There is no such exercise; the message lists those of the lesson, or the lessons.
    """
    number = str(id).split(".")[0]
    if number not in LESSONS:
        raise ValueError(f"no exercise {id!r}; the lessons with exercises are {', '.join(LESSONS)}")
    known = {exercise.id: exercise for exercise in of_lesson(number)}
    if id not in known:
        raise ValueError(f"no exercise {id!r}; those of lesson {number} are {', '.join(known)}")
    return known[id]
