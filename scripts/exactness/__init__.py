"""Does exactness matter? Two tasks, trained with abut and in three usual ways.

python -m scripts.exactness run     # every run that has no file yet
python -m scripts.exactness draw    # the raw file, the pictures and the page's table
"""
