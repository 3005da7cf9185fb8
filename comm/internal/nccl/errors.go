package nccl

import (
	"fmt"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/internal/rootcause"
)

// Version is a release of NCCL in its own encoding: 22803 is 2.28.3.
type Version int

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// Error is a failed NCCL call, or an asynchronous NCCL error.
type Error struct {
	Call    string // the NCCL or driver function
	Code    int    // ncclResult_t; if negative, the negated CUresult of libcuda
	Name    string // NCCL's name of the code: "unhandled system error"
	Detail  string // NCCL's last error message; may be empty
	Version Version
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%d), NCCL %v", e.Call, e.Name, e.Code, e.Version)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// IsPeerLoss reports whether the call may have failed because a peer has ended: ncclSystemError, which a socket's end
// causes too, or ncclRemoteError.
func (e *Error) IsPeerLoss() bool { return e.Code == 2 || e.Code == 6 }

// VersionError says that the library is too old.
type VersionError struct {
	Feature    string // the feature that needs the newer release
	Have, Need Version
	Path       string // the library's path
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s needs NCCL %v or newer, and %s is NCCL %v", e.Feature, e.Need, e.Path, e.Have)
}

// VersionMismatchError says that two ranks loaded different releases of NCCL, which are
// incompatible.
type VersionMismatchError struct {
	Ranks    [2]int
	Versions [2]Version
	Paths    [2]string
}

func (e *VersionMismatchError) Error() string {
	return fmt.Sprintf("rank %d has NCCL %v (%s) and rank %d NCCL %v (%s): all ranks need the same",
		e.Ranks[0], e.Versions[0], e.Paths[0], e.Ranks[1], e.Versions[1], e.Paths[1])
}

// SharedGPUError says that two ranks use the same GPU, which NCCL does not support.
type SharedGPUError struct {
	Ranks [2]int
	GPU   string // PCI bus id
}

func (e *SharedGPUError) Error() string {
	return fmt.Sprintf("ranks %d and %d are both on GPU %s of one host: NCCL needs a GPU for each rank, so start fewer ranks per host or give each its own device",
		e.Ranks[0], e.Ranks[1], e.GPU)
}

// LateError says which ranks were too late during the bootstrap, and what they had not done. It
// matches [failure.ErrTimeout].
type LateError struct {
	Ranks []int
	Size  int    // number of ranks in the group
	Step  string // what the ranks had not done, such as "made its device ready"
	Err   error  // the error that ended the wait for these ranks
}

func (e *LateError) Error() string {
	switch n := len(e.Ranks); n {
	case 1:
		return fmt.Sprintf("%v: %s has not %s", e.Err, rootcause.Ranks(e.Ranks), e.Step)
	case e.Size:
		return fmt.Sprintf("%v: none of %d ranks has %s; NCCL_DEBUG=INFO shows what NCCL does", e.Err, n, e.Step)
	}
	return fmt.Sprintf("%v: %s have not %s", e.Err, rootcause.Ranks(e.Ranks), e.Step)
}

// Is makes errors.Is(err, failure.ErrTimeout) hold.
func (e *LateError) Is(target error) bool { return target == failure.ErrTimeout }

func (e *LateError) Unwrap() error { return e.Err }
