"""Does exactness matter? Two tasks, trained with abut and with three other methods.

python -m scripts.exactness run     # train all missing runs
python -m scripts.exactness draw    # write the raw data, the pictures and the page's tables
"""
