package doctor

import (
	"time"

	"github.com/goddp/goddp/cmd/goddp/internal/nccllog"
	"github.com/goddp/goddp/internal/nvml"
)

// Facts are one rank's observations. Facts about a host come from its first rank.
type Facts struct {
	Rank int
	Node int    // the first rank of this rank's host
	Host string // the host's name
	// HostID is what NCCL takes for the host's identity: NCCL_HOSTID, else the boot id of the kernel, which containers share.
	HostID string
	// Environment holds the variables that NCCL, Gloo and comm read.
	Environment map[string]string

	SharedMemory Space
	// OpenFiles and LockedMemory (in bytes) are this process's limits.
	OpenFiles, LockedMemory uint64
	IsRoot                  bool
	Interfaces              []Interface
	// RDMAAdapters are the host's InfiniBand and RoCE adapters: "mlx5_0".
	RDMAAdapters []string
	NUMANodes    int
	// PortError says why nothing can listen on MASTER_PORT; it is empty if the port is free, or if no
	// rank will listen there.
	PortError string

	Libraries []Library
	// NVML is the state of all GPUs of the host, including those that no rank sees; nil if the rank computes on
	// the CPU, or the host has no NVML.
	NVML *nvml.Host
	// VisibleGPUs are the bus ids of the GPUs that the rank sees.
	VisibleGPUs []string
	// GPU is the bus id of the rank's GPU; empty if the rank computes on the CPU.
	GPU string
	// GPUError says why the rank has no GPU although it wants one.
	GPUError string

	// ClockOffset is this rank's clock minus rank 0's. ClockError bounds the error of the estimate.
	ClockOffset, ClockError time.Duration
	// Pairs are the speeds that this rank has measured with other ranks.
	Pairs []Pair
	// TFLOPS is the speed of a matrix product on the rank's device; 0 if it was not measured.
	TFLOPS float64
	// AllReduce is the bus bandwidth of an all-reduce of 64 MiB of all ranks on GPUs, in bytes per second;
	// 0 if it was not measured.
	AllReduce float64
	// NCCL is what NCCL has logged; nil if the ranks do not use NCCL.
	NCCL *nccllog.Log
	// Failure says why the rank could not join a group of the ranks, or why a measurement failed.
	Failure string
}

// Space is the size of a file system, in bytes.
type Space struct{ Size, Free uint64 }

// Interface is a network interface.
type Interface struct {
	Name       string
	IsUp       bool
	IsLoopback bool
	MTU        int
	Speed      float64 // the link's speed in bytes per second; 0 if unknown
	Addresses  []string
}

// Library is a shared library that goddp or NCCL opens when a program runs.
type Library struct {
	Name    string
	Path    string // empty if it was not found
	Version string
	Error   string // why it was not found, or cannot be used
}

// Pair is the speed at which two ranks exchange data.
type Pair struct {
	A, B           int
	BytesPerSecond float64
}

// Alone returns the facts for a report of this rank alone, without what it measured together with other ranks.
func (f Facts) Alone() []Facts {
	f.Pairs, f.AllReduce, f.NCCL = nil, 0, nil
	return []Facts{f}
}

// hosts returns the first rank of each host.
func hosts(ranks []Facts) (first []Facts) {
	for _, f := range ranks {
		if f.Rank == f.Node {
			first = append(first, f)
		}
	}
	return first
}
