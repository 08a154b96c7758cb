#!/bin/bash
#SBATCH --job-name=ads
#SBATCH --chdir=/here
#SBATCH --output=/here/slurm-jobs/NAME-ID/slurm-%j.log
#SBATCH --nodes=1-2
#SBATCH --mincpus=9
#SBATCH --cpus-per-task=9
#SBATCH --mem=1024
#SBATCH --gpus-per-node=4
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
max_retries=3
max_free_restarts=20
open_mode=append
srun_args=(--cpus-per-task=9 --ntasks-per-node=1)
container_args=()

setup() {
    :
}

replica() {
    exec bash -c 'exec python -P -m trainer.launch --nnodes 1:2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-id '"'""$SLURM_JOB_ID""'"' --rdzv-endpoint "${TORCHX_RANK0_HOST:?names the host of replica 0 and is not set}:${TORCHX_RANK0_PORT:-$((20000 + $(id='"'""$SLURM_JOB_ID""'"'; if [ ${id//[0-9]} ]; then cksum <<< $id | cut -d '"'"' '"'"' -f 1; else echo $id; fi) % 10000))}" --max-restarts 100 --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2 --shutdown-timeout 120 --tee 3 -m trainer train c.toml --out s3://bucket/run --resume must --train.steps 100 --note '"'"'it'"'"'"'"'"'"'"'"'s $HOME'"'"
}

