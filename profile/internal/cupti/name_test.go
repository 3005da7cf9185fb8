package cupti

import "testing"

func TestShortName(t *testing.T) {
	for mangled, want := range map[string]string{
		"layer_norm_float32": "layer_norm_float32",
		"_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
		"_ZN8cublasLt19splitKreduce_kernelILi32ELi16EifEEv":                               "cublasLt::splitKreduce_kernel",
		"_ZN2at6native39_GLOBAL__N__d7a6_12_Reduce_cu_3ab4_4e5f6reduceILi4EEvv":           "at::native::reduce",
		"_ZN7cutlass13device_kernelIN5flash4FwdXEEEvT_":                                   "cutlass::device_kernel",
		"_ZNSt6vectorIfE4copyEv": "std::vector",
		"_ZL4copyPf":             "copy",
		"_Z99short":              "_Z99short",
		"__nv_static_32__b4148644_10_onerank_cu_fdf47990__ZN43_GLOBAL__N__b4148644_10_onerank_cu_fdf4799013oneRankReduceI13FuncPreMulSumIfEEEvPvS3_mmb": "oneRankReduce",
		"__nv_static_1": "__nv_static_1",
		"_Z":            "_Z",
		"":              "",
		"nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN": "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN",
	} {
		if got := shortName(mangled); got != want {
			t.Errorf("%s: got %s, want %s", mangled, got, want)
		}
	}
}
