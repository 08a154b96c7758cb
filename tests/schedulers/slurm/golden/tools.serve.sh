#!/bin/bash
#SBATCH --job-name=serve
#SBATCH --chdir=/here
#SBATCH --output=/here/slurm-jobs/NAME-ID/slurm-%j.log
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=4096
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --requeue
# `sbatch /here/slurm-jobs/NAME-ID/torchx-job.sh` runs the job again.

warned= step=
trap warned=yes USR1  # before anything that takes time: by itself the signal would end the job as failed
job_dir=/here/slurm-jobs/NAME-ID
id=$SLURM_JOB_ID
log=$job_dir/slurm-$id.log
role=serve
max_retries=0
max_free_restarts=20
open_mode=append
srun_args=(--cpus-per-task=1)
container_args=()

setup() {
    :
}

replica() {
    exec python -P -m trainer serve --directory s3://b/exports --port 9000 --host 0.0.0.0 --wait-ms 5
}

