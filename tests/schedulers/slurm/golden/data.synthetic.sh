#!/bin/bash
#SBATCH --job-name=synthetic
#SBATCH --chdir=/here
#SBATCH --output=/here/slurm-jobs/NAME-ID/slurm-%j.log
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=4096
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --requeue
# `sbatch /here/slurm-jobs/NAME-ID/torchx-job.sh` runs the job again.

warned= step=
trap warned=yes USR1  # before anything that takes time: by itself the signal would end the job as failed
job_dir=/here/slurm-jobs/NAME-ID
log=$job_dir/slurm-$SLURM_JOB_ID.log
role=synthetic
max_retries=0
max_free_restarts=20
open_mode=append
srun_args=(--cpus-per-task=2)

setup() {
    :
}

replica() {
    exec python -m trainer synthetic --out data/synthetic --rows 5 --files 8 --validation-rows 100000 --test-rows 100000 --hotness 1 --zipf 1.1 --seed 0 --quiet True
}

