// All-reduce through MPI, float32 sum in place, for bench/cpu_allreduce.sh. Rank 0 prints lines of
// "bytes microseconds". The arguments, MIN MAX FACTOR ITERS WARMUP REPEAT, are as in "goddp bench",
// and so are the times: the median of REPEAT measurements of ITERS calls, the largest of all ranks.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	if (argc != 7) {
		fprintf(stderr, "%s: want MIN MAX FACTOR ITERS WARMUP REPEAT\n", argv[0]);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	int least = atoi(argv[1]), most = atoi(argv[2]), factor = atoi(argv[3]);
	int iters = atoi(argv[4]), warmup = atoi(argv[5]), repeat = atoi(argv[6]);
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	float *data = malloc(most);
	double *times = malloc(repeat * sizeof *times);
	for (int bytes = least; bytes <= most; bytes *= factor) {
		int count = bytes / sizeof *data;
		for (int i = 0; i < count; i++) data[i] = 0.75;
		for (int r = -1; r < repeat; r++) { // the first measurement is the warm-up
			MPI_Barrier(MPI_COMM_WORLD);
			double start = MPI_Wtime();
			for (int i = 0; i < (r < 0 ? warmup : iters); i++) MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
			if (r >= 0) times[r] = (MPI_Wtime() - start) / iters;
		}
		qsort(times, repeat, sizeof *times, ascending);
		double slowest;
		MPI_Reduce(&times[repeat / 2], &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
		if (rank == 0) printf("%d %.2f\n", bytes, slowest * 1e6);
	}
	free(times);
	free(data);
	MPI_Finalize();
}
