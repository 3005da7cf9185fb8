// All-reduce through NCCL called from C, float32 sum in place, in plain device memory, with one
// process per rank, for bench/gpu_allreduce.sh. Rank 0 prints lines of "bytes microseconds".
//
//	nvcc -O2 -o nccl_allreduce nccl_allreduce.c -lnccl
//	golaunch --nproc-per-node 2 ./nccl_allreduce ID_FILE MIN MAX FACTOR ITERS WARMUP REPEAT
//
// ID_FILE must not exist: rank 0 writes NCCL's id to it for the other ranks. The other arguments are
// as in "goddp bench", and so are the times: the host's time for ITERS calls on a stream and the wait
// for it, the median of REPEAT measurements, the largest of all ranks.
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what, const char *why) {
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}

#define CUDA(call) \
	do { \
		cudaError_t code = (call); \
		if (code != cudaSuccess) die(#call, cudaGetErrorString(code)); \
	} while (0)

#define NCCL(call) \
	do { \
		ncclResult_t code = (call); \
		if (code != ncclSuccess) die(#call, ncclGetErrorString(code)); \
	} while (0)

static double seconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

static int number(const char *variable) {
	const char *text = getenv(variable);
	if (text == NULL) die(variable, "not set: start this with golaunch");
	return atoi(text);
}

// share gives all ranks the id of rank 0. Rank 0 renames the file to its path when it is complete.
static ncclUniqueId share(int rank, const char *path) {
	ncclUniqueId id;
	char draft[4096];
	if (rank == 0) {
		NCCL(ncclGetUniqueId(&id));
		snprintf(draft, sizeof draft, "%s.draft", path);
		FILE *f = fopen(draft, "wb");
		if (f == NULL || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) != 0 || rename(draft, path) != 0) die(path, "cannot be written");
		return id;
	}
	for (double late = seconds() + 60;; usleep(1000)) {
		FILE *f = fopen(path, "rb");
		if (f != NULL) {
			if (fread(&id, sizeof id, 1, f) != 1) die(path, "holds no id");
			fclose(f);
			return id;
		}
		if (seconds() > late) die(path, "rank 0 did not write it within a minute");
	}
}

int main(int argc, char **argv) {
	if (argc != 8) die(argv[0], "want ID_FILE MIN MAX FACTOR ITERS WARMUP REPEAT");
	size_t least = strtoull(argv[2], NULL, 10), most = strtoull(argv[3], NULL, 10), factor = strtoull(argv[4], NULL, 10);
	int iters = atoi(argv[5]), warmup = atoi(argv[6]), repeat = atoi(argv[7]);
	if (least < sizeof(float) || factor < 2 || iters < 1 || repeat < 1) die(argv[0], "MIN is 4 or more, FACTOR 2, ITERS and REPEAT 1");

	int rank = number("RANK"), ranks = number("WORLD_SIZE");
	CUDA(cudaSetDevice(number("LOCAL_RANK")));
	ncclComm_t comm;
	NCCL(ncclCommInitRank(&comm, ranks, share(rank, argv[1]), rank));
	int version;
	NCCL(ncclGetVersion(&version));
	if (rank == 0) printf("# NCCL %d\n", version);

	cudaStream_t stream;
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	void *data;
	double *slowest; // the largest time of all ranks
	CUDA(cudaMalloc(&data, most));
	CUDA(cudaMalloc((void **)&slowest, sizeof *slowest));
	double *times = malloc(repeat * sizeof *times);
	for (size_t bytes = least; bytes <= most; bytes *= factor) {
		CUDA(cudaMemset(data, 0x3f, bytes)); // floats of about 0.75
		CUDA(cudaDeviceSynchronize());
		for (int r = -1; r < repeat; r++) { // the first measurement is the warm-up
			NCCL(ncclAllReduce(slowest, slowest, 1, ncclDouble, ncclMax, comm, stream)); // a barrier
			CUDA(cudaStreamSynchronize(stream));
			double start = seconds();
			for (int i = 0; i < (r < 0 ? warmup : iters); i++)
				NCCL(ncclAllReduce(data, data, bytes / sizeof(float), ncclFloat, ncclSum, comm, stream));
			CUDA(cudaStreamSynchronize(stream));
			if (r >= 0) times[r] = (seconds() - start) / iters;
		}
		qsort(times, repeat, sizeof *times, ascending);
		double time = times[repeat / 2];
		CUDA(cudaMemcpy(slowest, &time, sizeof time, cudaMemcpyHostToDevice));
		NCCL(ncclAllReduce(slowest, slowest, 1, ncclDouble, ncclMax, comm, stream));
		CUDA(cudaStreamSynchronize(stream));
		CUDA(cudaMemcpy(&time, slowest, sizeof time, cudaMemcpyDeviceToHost));
		if (rank == 0) {
			printf("%zu %.2f\n", bytes, time * 1e6);
			fflush(stdout);
		}
	}
	NCCL(ncclCommDestroy(comm));
	free(times);
	CUDA(cudaFree(slowest));
	CUDA(cudaFree(data));
	CUDA(cudaStreamDestroy(stream));
	return 0;
}
