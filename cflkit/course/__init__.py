"""The course: how exercises are read, checked and written.

Exercises themselves are in ``notebooks/src/exercises``, and quizzes in ``notebooks/src/quizzes``.

- `exercises` has the three kinds of exercises, and how an answer is judged.
- `sources` reads an exercise from its source.
- `versions` writes notebooks for students, solutions, and an nbgrader course.
- `quizzes` shows quizzes in notebooks, and writes them for Moodle.
"""
