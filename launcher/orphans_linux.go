package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxLooks is how often descendants searches when this process has children but the
// search finds none.
const maxLooks = 100

// setSubreaper sets whether orphans below this process become its children.
func setSubreaper(on bool) error {
	var flag uintptr
	if on {
		flag = 1
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, flag, 0, 0, 0)
}

// sureLooks is how many empty searches in a row descendants requires when it excepts a
// child, because the kernel then cannot confirm that there are no other children.
const sureLooks = 3

// descendants returns a finder of all processes below this process, except its child with
// process id keep and the processes below that child (0: no exception). This process must be a
// subreaper. The finder waits for each child that has ended, by its process id.
//
// A process whose main thread has ended while other threads live looks like a zombie. It
// cannot be waited for, and signals reach it, so it counts as alive.
//
// The list of children in /proc may miss a process that becomes a child during the search.
// So the finder asks the kernel whether this process has any children before it returns
// nothing.
func descendants(keep int) finder {
	self := os.Getpid()
	return func(act func(pid int)) (found []int, err error) {
		for look := range maxLooks {
			err := forEachChild(self, func(pid int) error {
				if pid == keep || reap(pid) {
					return nil
				}
				return forEachBelow(pid, func(pid int) {
					act(pid)
					found = append(found, pid)
				})
			})
			if len(found) > 0 || err != nil {
				return found, err
			}
			if keep != 0 && look+1 == sureLooks || keep == 0 && !hasChildren() {
				return nil, nil
			}
		}
		return nil, errors.New("waitid finds children of this process, but /proc/self/task/*/children lists none")
	}
}

// reapOrphans waits for the children of this process that have ended, except those for
// which keep returns true.
func reapOrphans(keep func(pid int) bool) {
	// The error is ignored: a zombie that is missed now is reaped by a later call.
	_ = forEachChild(os.Getpid(), func(pid int) error {
		if !keep(pid) {
			reap(pid)
		}
		return nil
	})
}

// reap waits for a child if the child has ended, and reports whether the child is gone.
func reap(pid int) bool {
	n, err := unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
	return n == pid || err == unix.ECHILD
}

// hasChildren reports whether this process has children, dead or alive.
func hasChildren() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if err != unix.EINTR {
			return err != unix.ECHILD
		}
	}
}

// forEachBelow calls f for a process and for all its descendants, parents before children:
// once f has killed a process, that process starts no more children.
func forEachBelow(pid int, f func(pid int)) error {
	f(pid)
	return forEachChild(pid, func(pid int) error { return forEachBelow(pid, f) })
}

// forEachChild calls f for the children of a process. It returns the errors of f, and an
// error if this process could not read the list of children.
func forEachChild(pid int, f func(pid int) error) error {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := namesIn(tasks)
	if lacking(err) {
		return err
	}
	var errs []error
	for _, tid := range threads {
		list, err := os.ReadFile(tasks + "/" + tid + "/children")
		if lacking(err) {
			errs = append(errs, err)
		}
		for field := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(field); err == nil {
				errs = append(errs, f(child))
			}
		}
	}
	return errors.Join(errs...)
}

// namesIn returns the names in a folder.
func namesIn(path string) ([]string, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// lacking reports whether err means that this process or the machine has too few
// descriptors or too little memory. Such an error says nothing about the process that was
// examined.
func lacking(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// exiting reports whether process pid is exiting, a zombie, or gone. Once another process can
// notice the exit of pid, for example by a closed connection, exiting returns true. A process is
// not exiting if only its main thread has ended.
func exiting(pid int) bool {
	proc := "/proc/" + strconv.Itoa(pid)
	if gone, err := threadExiting(proc); !gone {
		return err != nil && !lacking(err)
	}
	threads, err := namesIn(proc + "/task")
	if lacking(err) {
		return false
	}
	for _, tid := range threads {
		gone, err := threadExiting(proc + "/task/" + tid)
		if err == nil && !gone && !killPending(proc+"/task/"+tid) {
			return false
		}
	}
	return true
}

// threadExiting reports whether a thread, given by its folder in /proc, has ended or is ending.
func threadExiting(folder string) (bool, error) {
	fields, err := statFields(folder)
	if err != nil {
		return false, err
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	const pfExiting = 0x4 // PF_EXITING in the kernel's sched.h
	return fields[0] == "Z" || fields[0] == "X" || flags&pfExiting != 0, err
}

// statFields returns the fields of a stat file in /proc from the third on:
// state ppid pgrp session tty tpgid flags ...
func statFields(folder string) ([]string, error) {
	data, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return nil, err
	}
	// The second field is the name in parentheses. It may hold spaces and parentheses.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 7 {
		return nil, fmt.Errorf("cannot parse %s/stat: %q", folder, data)
	}
	return fields, nil
}

// hasLivingMember reports whether a process group has a member that is not a zombie. A
// zombie may stay for ever, because not every init process waits for its children.
func hasLivingMember(pgid int) bool {
	names, err := namesIn("/proc")
	for _, name := range names {
		pid, notPID := strconv.Atoi(name)
		if notPID != nil {
			continue
		}
		fields, err := statFields("/proc/" + name)
		if lacking(err) || err == nil && fields[2] == strconv.Itoa(pgid) && !exiting(pid) {
			return true
		}
	}
	return err != nil
}

// killPending reports whether a thread has a pending SIGKILL: its process is ending, but
// the thread has not run since.
func killPending(folder string) bool {
	data, _ := os.ReadFile(folder + "/status")
	_, rest, _ := bytes.Cut(data, []byte("\nSigPnd:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	pending, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return err == nil && pending&(1<<(uint(syscall.SIGKILL)-1)) != 0
}
