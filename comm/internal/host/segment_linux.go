package host

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/kernels"
)

// mapping is shared memory mapped into this process. It is unmapped when nothing refers to it.
type mapping struct{ mem []byte }

// segment is shared memory of this process. Peers receive its file descriptor over a socket. It has
// no name, so nothing remains when the processes end.
type segment struct {
	mapping
	id    uint64 // random
	fd    int
	peers *audience
}

// audience holds the groups that must be notified when a segment is freed.
type audience struct {
	mu     sync.Mutex
	groups []weak.Pointer[shmGroup]
}

// reserveStep is the number of bytes reserved between two checks of the free memory.
const reserveStep = 64 << 20

// newSegment creates a zeroed segment. It reserves the memory at once, so that later writes cannot
// fail for lack of memory.
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
	s := &segment{mapping: mapping{mem}, id: id, fd: fd, peers: &audience{}}
	a := s.peers
	runtime.AddCleanup(s, func(mem []byte) {
		unix.Munmap(mem)
		unix.Close(fd)
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, w := range a.groups {
			if g := w.Value(); g != nil {
				g.retire(id)
			}
		}
	}, mem)
	return s, nil
}

// reserve allocates the memory of the file. It checks the host's free memory at every step, because
// other ranks reserve memory at the same time and the kernel may kill a process rather than return
// an error.
func reserve(fd, size int) error {
	for at := 0; at < size; at += reserveStep {
		if err := kernels.CheckMemory(size - at); err != nil {
			return fmt.Errorf("only %d of %d bytes could be reserved: %w", at, size, err)
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

// mapFD maps a peer's segment and closes fd. It returns an error if the peer could still shrink the
// segment.
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
		return nil, fmt.Errorf("segment has %d bytes and seals %#[3]x, want the announced %[2]d bytes and a seal against shrinking", st.Size, size, seals)
	}
	mem, err := mmap(fd, size)
	if err != nil {
		return nil, err
	}
	m := &mapping{mem}
	runtime.AddCleanup(m, func(mem []byte) { unix.Munmap(mem) }, mem)
	return m, nil
}

// offset returns the offset of mem in the segment.
func (s *segment) offset(mem []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(mem))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))))
}
