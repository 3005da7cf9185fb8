// All-reduce through MPI, float32 sum, in place: "KiB median-microseconds"
// lines on rank 0. A peer of bench/cpu_allreduce.sh.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

int main(int argc, char **argv) {
	static const int kib[] = {1, 16, 64, 256, 1024, 4096, 16384, 65536};
	int rank;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (unsigned k = 0; k < sizeof kib / sizeof *kib; k++) {
		int n = kib[k] * 256, runs = kib[k] < 1024 ? 200 : 20;
		float *data = malloc(n * sizeof *data);
		double times[200];
		for (int i = -5; i < runs; i++) {
			for (int j = 0; j < n; j++) data[j] = 1;
			MPI_Barrier(MPI_COMM_WORLD);
			double begun = MPI_Wtime();
			MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
			if (i >= 0) times[i] = MPI_Wtime() - begun;
		}
		qsort(times, runs, sizeof *times, ascending);
		if (rank == 0) printf("%d %.1f\n", kib[k], times[runs / 2] * 1e6);
		free(data);
	}
	MPI_Finalize();
}
