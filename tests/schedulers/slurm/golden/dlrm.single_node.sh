#!/bin/bash
#SBATCH --job-name=dlrm
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
id=$SLURM_JOB_ID
log=$job_dir/slurm-$id.log
role=trainer
max_retries=0
max_free_restarts=20
open_mode=append
srun_args=(--cpus-per-task=2)
container_args=()

setup() {
    :
}

replica() {
    exec bash -c 'exec python -P -m trainer.launch --nnodes 1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id '"'""$SLURM_JOB_ID""'"' --rdzv-endpoint localhost:0 --max-restarts 0 --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2 --shutdown-timeout 120 --tee 3 -m trainer train c.toml --out '"'"'runs/'"$SLURM_JOB_ID""'"' --resume auto --train.steps 100 --note '"'"'it'"'"'"'"'"'"'"'"'s $HOME'"'"
}

