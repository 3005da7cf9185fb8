package flight

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/jobenv"
)

// memfdName is the name of a recorder's memfd. memfdLink is the target of /proc/PID/fd/N for a descriptor of it.
const (
	memfdName = "goddp-flight"
	memfdLink = "/memfd:" + memfdName + " (deleted)"
)

// Shared is memory for the recorder of another process. This process can read it even when the
// other one has died.
type Shared struct {
	file *os.File
	mem  []byte // read-only
}

// NewShared allocates memory for a recorder with the given number of entries. The memory's size cannot be changed.
func NewShared(entries int) (*Shared, error) {
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("flight: memfd_create: %w", err)
	}
	s := &Shared{file: os.NewFile(uintptr(fd), memfdName)}
	size := Size(entries)
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("flight: reserving %d bytes of shared memory: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_SEAL); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("flight: sealing shared memory: %w", err)
	}
	if s.mem, err = mapMemory(fd, unix.PROT_READ); err != nil {
		s.file.Close()
		return nil, err
	}
	return s, nil
}

// seals keep other processes from changing the size of the memory.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// File returns the file that the other process must inherit. [jobenv.FlightFDVar] must hold its descriptor in
// that process.
func (s *Shared) File() *os.File { return s.file }

// Read reads the record of the other process. child is the process id of the child that inherited the memory. Usually this
// child is the process that records.
func (s *Shared) Read(child int) (*Dump, error) { return readOf(s.mem, child) }

// readOf reads the record of another process of this host. It sets Ending and Fate if that process is
// suspended, or has become another program. child is the process id of a child that may be that process, or 0.
func readOf(mem []byte, child int) (*Dump, error) {
	d, err := Read(mem)
	if err != nil {
		return nil, err
	}
	// The state follows the process's name, which is in parentheses and may contain any bytes.
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.PID)) // empty if the process has ended
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && bytes.HasPrefix(stat[i+1:], []byte(" T ")) {
		d.Ending, d.Fate = Suspended, "is suspended"
	}
	if program := replacedBy(d.PID); program != "" && (d.PID == child || isOfJob(d.PID, d.Job)) {
		d.Ending, d.Fate = Replaced, "has become another program by exec: "+program
	}
	return d, nil
}

// replacedBy returns the program that a process has executed by exec since it recorded, or "" if it has not.
// exec closes the descriptor of the recorder's memory.
func replacedBy(pid int) string {
	proc := fmt.Sprintf("/proc/%d/", pid)
	links, _ := filepath.Glob(proc + "fd/*") // the pattern is valid
	for _, link := range links {
		if target, _ := os.Readlink(link); target == memfdLink {
			return ""
		}
	}
	program, _ := os.Readlink(proc + "exe") // fails if the process has ended, or is about to
	return program
}

// isOfJob reports whether the environment of a process names the job. If it does not, the process may not be the one that
// recorded: another process may have got its id since, or the id may be of another namespace.
func isOfJob(pid int, job string) bool {
	environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return job != "" && slices.ContainsFunc(strings.Split(string(environ), "\x00"), func(v string) bool {
		name, isSet := strings.CutPrefix(v, jobenv.JobIDVar+"=")
		return isSet && asRecorded(name) == job
	})
}

// asRecorded returns the name of a job as a record holds it, where it is cut to the length of the field.
func asRecorded(name string) string {
	field := header{}.job
	return text(field[:copy(field[:], name)])
}

// Close releases the memory.
func (s *Shared) Close() error {
	unmap(s.mem)
	return s.file.Close()
}

// Inherited maps the memory that the launcher allocated for this process. jobenv.FlightFDVar holds its
// descriptor; if jobenv.FlightFDVar is not set, Inherited returns nil. Programs that this process starts do not
// inherit the memory. The error says that the descriptor is something else, or that another process
// records into the memory.
func Inherited() ([]byte, error) {
	value := os.Getenv(jobenv.FlightFDVar)
	if value == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("flight: %s is %q, want the number of a file descriptor", jobenv.FlightFDVar, value)
	}
	if err := checkSeals(fd); err != nil {
		return nil, fmt.Errorf("flight: %s is %d: %w", jobenv.FlightFDVar, fd, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("flight: %s is %d: %w", jobenv.FlightFDVar, fd, err)
	}
	// The lock belongs to this process and ends with it. It matters if the worker is a script
	// that starts several processes.
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &lock); err != nil {
		return nil, fmt.Errorf("flight: %s is %d: another process records into it: %w", jobenv.FlightFDVar, fd, err)
	}
	return mapMemory(fd, unix.PROT_READ|unix.PROT_WRITE)
}

// checkSeals returns an error if a descriptor is not memory of a fixed size.
func checkSeals(fd int) error {
	has, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if errors.Is(err, unix.EINVAL) {
		return errors.New("no shared memory")
	}
	if err == nil && has&seals != seals {
		err = fmt.Errorf("the descriptor's memory has seals %#x, want %#x", has, seals)
	}
	return err
}

func mapMemory(fd, prot int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("flight: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("flight: mapping %d bytes of shared memory: %w", st.Size, err)
	}
	return mem, nil
}

func unmap(mem []byte) { _ = unix.Munmap(mem) } // it was mapped

// Find reads the records of a job's processes on this host. It does not need the processes'
// cooperation, so they may be stuck or suspended. job is the process id of the launcher or of a
// rank, the user's name of the job, or the launcher's id of the job. Find can only read processes of the
// same user. It omits processes that have recorded nothing.
func Find(job string) ([]*Dump, error) {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, err
	}
	name := asRecorded(job)
	var dumps []*Dump
	seen := map[uint64]bool{} // by inode, because both the launcher and the rank hold the memory
	for _, fdPath := range links {
		if target, err := os.Readlink(fdPath); err != nil || target != memfdLink {
			continue
		}
		inode, d, err := readDescriptor(fdPath)
		if err != nil || seen[inode] {
			continue
		}
		holder := filepath.Base(filepath.Dir(filepath.Dir(fdPath)))
		if job == holder || name == d.Job || name == d.Run || job == strconv.Itoa(d.PID) {
			seen[inode] = true
			dumps = append(dumps, d)
		}
	}
	return dumps, nil
}

// readDescriptor reads the record in a file descriptor of another process. fdPath is the
// descriptor's path in /proc.
func readDescriptor(fdPath string) (inode uint64, d *Dump, err error) {
	f, err := os.Open(fdPath)
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, nil, err
	}
	if err := checkSeals(fd); err != nil {
		return 0, nil, err
	}
	mem, err := mapMemory(fd, unix.PROT_READ)
	if err != nil {
		return 0, nil, err
	}
	defer unmap(mem)
	d, err = readOf(mem, 0)
	return st.Ino, d, err
}
