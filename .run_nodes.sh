export ABUT_NEMO_GYM=/work/wt/nemo/.venv-nemo-gym PYTHONPATH=$PWD/python OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
exec /work/main/.venv/bin/python -m pytest "$@"
