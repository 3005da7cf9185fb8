// Measures what it costs a stream, and the host, to follow the progress of short calls: by an event
// behind each call, or by words in pinned memory that the stream writes before and after each call
// (cuStreamWriteValue32). Prints medians in microseconds.
//
//	nvcc -O2 -o progress_words bench/progress_words.cu -lcuda && ./progress_words
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                             \
	do {                                                                        \
		if (int err = (int)(call)) {                                            \
			fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, err); \
			exit(1);                                                            \
		}                                                                       \
	} while (0)

// spin keeps one block busy for about as long as a small all-reduce.
__global__ void spin(long long cycles) {
	long long begin = clock64();
	while (clock64() - begin < cycles) {
	}
}

enum Way { NOTHING, EVENT, WORD_BEHIND, WORDS_AROUND, WAYS };
static const char *names[] = {"nothing", "event behind", "word behind", "words around"};

static double now() {
	return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double median(std::vector<double> v) {
	std::sort(v.begin(), v.end());
	return v[v.size() / 2];
}

int main() {
	const int calls = 200, rounds = 15;
	CHECK(cudaSetDevice(0));
	cudaStream_t stream;
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	uint32_t *words;
	CHECK(cudaHostAlloc(&words, 4096, cudaHostAllocMapped));
	CUdeviceptr at;
	CHECK(cuMemHostGetDevicePointer(&at, words, 0));
	std::vector<cudaEvent_t> events(calls);
	for (auto &e : events) CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	cudaEvent_t first, last;
	CHECK(cudaEventCreate(&first));
	CHECK(cudaEventCreate(&last));

	printf("%-14s %10s %10s\n", "followed by", "stream/call", "host/call");
	for (int way = 0; way < WAYS; way++) {
		std::vector<double> device, host;
		for (int r = 0; r < rounds; r++) {
			CHECK(cudaStreamSynchronize(stream));
			CHECK(cudaEventRecord(first, stream));
			double start = now();
			for (int i = 0; i < calls; i++) {
				if (way == WORDS_AROUND) CHECK(cuStreamWriteValue32(stream, at, 2 * i + 1, 0));
				spin<<<1, 32, 0, stream>>>(9000);
				if (way == EVENT) CHECK(cudaEventRecord(events[i], stream));
				if (way == WORD_BEHIND || way == WORDS_AROUND) CHECK(cuStreamWriteValue32(stream, at + 64, 2 * i + 2, 0));
			}
			host.push_back((now() - start) / calls);
			CHECK(cudaEventRecord(last, stream));
			CHECK(cudaStreamSynchronize(stream));
			float ms;
			CHECK(cudaEventElapsedTime(&ms, first, last));
			device.push_back(ms * 1e3 / calls);
		}
		printf("%-14s %10.2f %10.2f\n", names[way], median(device), median(host));
	}

	const int asks = 100000;
	double start = now();
	for (int i = 0; i < asks; i++) cudaEventQuery(events[i % calls]);
	double query = (now() - start) / asks;
	volatile uint32_t *word = words;
	uint32_t sum = 0;
	start = now();
	for (int i = 0; i < asks; i++) sum += *word;
	printf("asking: event %.3f, word %.3f (%u)\n", query, (now() - start) / asks, sum != 0);
}
