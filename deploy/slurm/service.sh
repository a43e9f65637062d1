#!/bin/sh
# A data service and a training in one job: a dispatcher on the first node, four data workers, and two trainers.
#   sbatch deploy/slurm/service.sh train.py
# The cluster's network must belong to you alone; otherwise give certificates, as SECURITY.md says.
#SBATCH --nodes=3
#SBATCH --ntasks=6
#SBATCH --cpus-per-task=4
set -eu
umask 077
PENSTOCK_TOKEN_FILE=$HOME/.penstock-token-$SLURM_JOB_ID
export PENSTOCK_TOKEN_FILE PENSTOCK_INSECURE=1
openssl rand -hex 32 > "$PENSTOCK_TOKEN_FILE"
running=
trap 'rm -f "$PENSTOCK_TOKEN_FILE"; kill $running 2>/dev/null || true' EXIT
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --overlap --nodes=1 --ntasks=1 --nodelist="$first" \
  penstock dispatcher --host 0.0.0.0 --port 5050 --work-dir "$TMPDIR/journal" --insecure &
running=$!
srun --overlap --ntasks=4 \
  sh -c 'exec penstock worker --dispatcher "$0:5050" --host 0.0.0.0 --port 0 --worker-address "$(hostname):%port%" --insecure' \
  "$first" &
running="$running $!"
PENSTOCK_SERVICE=$first:5050 srun --ntasks=2 python "$@"
