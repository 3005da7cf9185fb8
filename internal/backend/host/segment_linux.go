package host

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/memcheck"
)

// mapping is shared memory as this process sees it. It is unmapped when
// nothing refers to it any more, never before.
type mapping struct{ mem []byte }

// segment is shared memory that this process made. Peers get its descriptor
// by way of a socket: it has no name that could outlive the processes.
type segment struct {
	mapping
	id       uint64 // a random number
	fd       int
	audience *audience
}

// audience is who must hear that a segment is gone.
type audience struct {
	mu     sync.Mutex
	boards []weak.Pointer[deskBoard]
}

// reserveStep is how much memory is reserved between two looks at what is left.
const reserveStep = 64 << 20

// newSegment makes a segment of zeros. Its memory is reserved here and now:
// it cannot run out under a writer later.
func newSegment(id uint64, size int) (*segment, error) {
	fd, err := unix.MemfdCreate("goddp", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	size = max(size, 1)
	if err := reserve(fd, size); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("reserving shared memory: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("sealing shared memory: %w", err)
	}
	mem, err := mmap(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s := &segment{mapping: mapping{mem}, id: id, fd: fd, audience: &audience{}}
	a := s.audience
	runtime.AddCleanup(s, func(mem []byte) {
		unix.Munmap(mem)
		unix.Close(fd)
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, w := range a.boards {
			if b := w.Value(); b != nil {
				b.retire(id)
			}
		}
	}, mem)
	return s, nil
}

// reserve gives the file its memory. It looks at what the host has left as it goes
// on, because other ranks reserve at the same time, and the kernel would rather kill a
// process than refuse.
func reserve(fd, size int) error {
	for at := 0; at < size; at += reserveStep {
		if err := memcheck.Check(size - at); err != nil {
			return fmt.Errorf("%d of %d bytes are reserved: %w", at, size, err)
		}
		if err := unix.Fallocate(fd, 0, int64(at), int64(min(size-at, reserveStep))); err != nil {
			return err
		}
	}
	return nil
}

func mmap(fd, size int) ([]byte, error) {
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of shared memory: %w", size, err)
	}
	return mem, nil
}

// mapFD maps a peer's segment and closes the descriptor. The peer must not be
// able to take the memory away again.
func mapFD(fd, size int) (*mapping, error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("reading the seals: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 || size <= 0 || int64(size) > st.Size {
		return nil, fmt.Errorf("segment of %d bytes, announced as %d, with seals %#x", st.Size, size, seals)
	}
	mem, err := mmap(fd, size)
	if err != nil {
		return nil, err
	}
	m := &mapping{mem}
	runtime.AddCleanup(m, func(mem []byte) { unix.Munmap(mem) }, mem)
	return m, nil
}

// offset is where in the segment mem begins.
func (s *segment) offset(mem []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(mem))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))))
}
