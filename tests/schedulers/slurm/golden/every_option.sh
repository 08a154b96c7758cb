#!/bin/bash
#SBATCH --job-name=dlrm
#SBATCH --chdir=/here/job
#SBATCH --output=/here/job/slurm-%j.log
#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --mem=64G
#SBATCH --account=ads
#SBATCH --partition=gpu,spare
#SBATCH --qos=high
#SBATCH --time=8:00:00
#SBATCH --constraint='a100&nvlink'
#SBATCH --nodelist='node[01-04]'
#SBATCH --exclude=node02,node03
#SBATCH --reservation=maintenance
#SBATCH --gres=gpu:a100:8
#SBATCH --nice=100
#SBATCH --dependency=afterok:1234
#SBATCH --begin=now+1hour
#SBATCH --comment='it'"'"'s $5'
#SBATCH --mail-user=me@example.org
#SBATCH --mail-type=END,FAIL
#SBATCH --clusters=east,west
#SBATCH --exclusive
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --signal=B:USR1@300
#SBATCH --open-mode=truncate
#SBATCH --no-requeue
#SBATCH --licenses matlab
#SBATCH --switches 1
# `sbatch /here/job/torchx-job.sh` runs the job again.

warned= step=
trap warned=yes USR1  # before anything that takes time: by itself the signal would end the job as failed
job_dir=/here/job
id=$SLURM_JOB_ID
log=$job_dir/slurm-$id.log
role=trainer
max_retries=2
max_free_restarts=5
open_mode=truncate
srun_args=(--cpus-per-task=2 --mpi none)
container_args=('--container-image=/images/trainer image.sqsh' --container-mounts=/here/job:/here/job,/host:/job:ro,/data:/data:ro)

setup() {
    module load cuda
    . ./env.sh
}

replica() {
    exec bash -c 'exec python -P -m trainer.launch --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id '"'""$SLURM_JOB_ID@$SLURM_CLUSTER_NAME""'"' --rdzv-endpoint "${TORCHX_RANK0_HOST:?names the host of replica 0 and is not set}:${TORCHX_RANK0_PORT:-$((20000 + $(id='"'""$SLURM_JOB_ID@$SLURM_CLUSTER_NAME""'"'; if [ ${id//[0-9]} ]; then cksum <<< $id | cut -d '"'"' '"'"' -f 1; else echo $id; fi) % 10000))}" --max-restarts 0 --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2 --shutdown-timeout 120 --tee 3 -m trainer train c.toml --out '"'"'runs/'"$SLURM_JOB_ID@$SLURM_CLUSTER_NAME""'"' --resume auto'
}

