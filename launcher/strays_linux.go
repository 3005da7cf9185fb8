package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// maxScans bounds how often leftovers looks again on a machine where processes
// come and go all the time.
const maxScans = 20

// environSize is the size of the buffer for a process's environment; few are larger.
const environSize = 128 << 10

// leftovers finds what of a job is alive, calls act for each, and returns them,
// as targets for kill(2): every process that was started with the job's id in
// its environment, and those that hide the environment but are still in one of
// groups. Neither zombies nor this process are among them. act is called at
// once, for a process seen to be alive may not be a moment later.
//
// One look cannot prove that nothing is left: a process may fork and exit
// between being listed and being read, and its child is not on the list. So an
// empty result stands only if every process that could not be read had been
// unreadable in the look before, and thus cannot have forked since. The error says
// that this process could not look, for want of descriptors or memory.
func leftovers(jobID string, groups []int, act func(target int)) (found []int, err error) {
	mark := []byte(jobIDVar + "=" + jobID)
	var unreadable []int
	for range maxScans {
		living, err := livingGroups(groups, mark)
		if err != nil {
			return nil, err
		}
		found, now, err := scan(mark, living, act)
		if err != nil {
			return found, err
		}
		fresh := slices.ContainsFunc(now, func(pid int) bool { return !slices.Contains(unreadable, pid) })
		if len(found) > 0 || !fresh {
			return found, nil
		}
		unreadable = now
	}
	return nil, nil
}

// lacking reports whether err says that this process, or the machine, lacks what it
// takes to look at a process, and so nothing about that process.
func lacking(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// scan looks at all processes once. It returns those of the job, having called
// act for each, and those whose environment
// cannot be read for sure: zombies, and what ends meanwhile. The error says that it
// could not look at all of them.
func scan(mark []byte, groups []int, act func(int)) (found, unreadable []int, blind error) {
	pids, err := allProcesses()
	if lacking(err) {
		blind = err
	}
	self := os.Getpid()
	buf := make([]byte, environSize)
	for _, pid := range pids {
		if pid == self {
			continue
		}
		ours, err := carries(pid, mark, buf)
		if !ours && len(groups) > 0 {
			member, unknown := inGroup(pid, groups)
			ours = member
			if lacking(unknown) {
				blind = unknown
			}
		}
		switch {
		case ours:
			act(pid)
			found = append(found, pid)
		case lacking(err):
			blind = err
		case err == syscall.EACCES, err == syscall.EPERM: // another user's
		case err != nil && !isKernelThread(pid):
			unreadable = append(unreadable, pid)
		}
	}
	return found, unreadable, blind
}

// livingGroups returns those of groups that still have members and are still
// the job's: once a group's leader has been waited for and the group is empty,
// its number may come back as a stranger's process.
func livingGroups(groups []int, mark []byte) (living []int, err error) {
	for _, pgid := range groups {
		if syscall.Kill(-pgid, 0) == syscall.ESRCH {
			continue
		}
		leader, err := statOf(pgid)
		ours := err != nil || leader.dead()
		if !ours {
			ours, err = carries(pgid, mark, make([]byte, environSize))
		}
		if lacking(err) {
			return nil, err
		}
		if ours {
			living = append(living, pgid)
		}
	}
	return living, nil
}

// allProcesses lists what it can, and says with an error that there may be more.
func allProcesses() (pids []int, err error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// carries reports whether process pid was started with mark, a NAME=value, in
// its environment, which it reads into buf. The error says that the environment
// could not be read, or perhaps not to its end.
func carries(pid int, mark, buf []byte) (bool, error) {
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/environ", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer syscall.Close(fd)
	// One read is atomic: the kernel holds on to the memory meanwhile. Between
	// two the process may end, and the second then reports the end of the file.
	n, err := syscall.Read(fd, buf)
	if err != nil {
		return false, err
	}
	environ := buf[:n]
	for n > 0 && err == nil && len(environ) >= len(buf) {
		rest := make([]byte, environSize)
		n, err = syscall.Read(fd, rest)
		environ = append(environ, rest[:max(n, 0)]...)
	}
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		if bytes.Equal(kv, mark) {
			return true, nil
		}
	}
	if len(environ) == 0 || len(environ) >= len(buf) && exiting(pid) {
		return false, syscall.ESRCH
	}
	return false, err
}

// isKernelThread reports whether pid is a thread of the kernel's own.
func isKernelThread(pid int) bool {
	const pfKthread = 0x200000 // PF_KTHREAD in the kernel's sched.h
	st, err := statOf(pid)
	return err == nil && st.flags&pfKthread != 0
}

// inGroup reports whether process pid runs in one of groups.
func inGroup(pid int, groups []int) (bool, error) {
	st, err := statOf(pid)
	return err == nil && !st.dead() && slices.Contains(groups, st.pgrp), err
}

// exiting reports whether process pid is on its way out, a zombie, or gone.
// Whatever of its end others may have noticed, such as a closed connection, it
// has been exiting since before that.
func exiting(pid int) bool {
	const pfExiting = 0x4 // PF_EXITING in the kernel's sched.h
	st, err := statOf(pid)
	return err != nil && !lacking(err) || st.dead() || st.flags&pfExiting != 0
}

// stat is what /proc/PID/stat says of a process's main thread.
type stat struct {
	state string // one letter
	pgrp  int
	flags uint64
}

func (s stat) dead() bool { return s.state == "Z" || s.state == "X" }

func statOf(pid int) (st stat, err error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return st, err
	}
	// pid (name) state ppid pgrp session tty tpgid flags ..., where the name
	// may hold anything.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 7 {
		return st, fmt.Errorf("stat of process %d: %q", pid, data)
	}
	st.state = fields[0]
	var errs [2]error
	st.pgrp, errs[0] = strconv.Atoi(fields[2])
	st.flags, errs[1] = strconv.ParseUint(fields[6], 10, 64)
	return st, errors.Join(errs[:]...)
}
