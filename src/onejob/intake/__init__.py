"""Intake: rows of the user's own tables become jobs, each row once.

`sources` is what users write, `handle` what they hold, `views` what they are told. `taking` is the way of a page of rows, over
a database as `own` or `engine` opens it; SQLAlchemy is imported there, and only once an intake is used.
"""
