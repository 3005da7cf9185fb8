package launcher

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// leftovers returns what of a job is alive, as targets for kill(2): every
// process that was started with the job's id in its environment, and those that
// hide the environment but are still in one of groups. Neither zombies
// nor this process are among them.
func leftovers(jobID string, groups []int) []int {
	var found []int
	mark := []byte(jobIDVar + "=" + jobID)
	self := os.Getpid()
	watched := livingGroups(groups, mark)
	for _, pid := range allProcesses() {
		if pid == self {
			continue
		}
		if carries(pid, mark) || len(watched) > 0 && inGroup(pid, watched) {
			found = append(found, pid)
		}
	}
	return found
}

// livingGroups returns those of groups that still have members and are still
// the job's: once a group's leader has been waited for and the group is empty,
// its number may come back as a stranger's process.
func livingGroups(groups []int, mark []byte) []int {
	return slices.DeleteFunc(slices.Clone(groups), func(pgid int) bool {
		if syscall.Kill(-pgid, 0) == syscall.ESRCH {
			return true
		}
		leader, exists := statOf(pgid)
		return exists && !leader.dead() && !carries(pgid, mark)
	})
}

func allProcesses() []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // what was read before an error still counts
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// carries reports whether process pid was started with mark, a NAME=value, in
// its environment. It is false for zombies, which have none, and for processes
// of other users, which this one could not signal either.
func carries(pid int, mark []byte) bool {
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		if bytes.Equal(kv, mark) {
			return true
		}
	}
	return false
}

// inGroup reports whether process pid runs in one of groups.
func inGroup(pid int, groups []int) bool {
	st, ok := statOf(pid)
	return ok && !st.dead() && slices.Contains(groups, st.pgrp)
}

// exiting reports whether process pid is on its way out, a zombie, or gone.
// Whatever of its end others may have noticed, such as a closed connection, it
// has been exiting since before that.
func exiting(pid int) bool {
	const pfExiting = 0x4 // PF_EXITING in the kernel's sched.h
	st, ok := statOf(pid)
	return !ok || st.dead() || st.flags&pfExiting != 0
}

// stat is what /proc/PID/stat says of a process's main thread.
type stat struct {
	state string // one letter
	pgrp  int
	flags uint64
}

func (s stat) dead() bool { return s.state == "Z" || s.state == "X" }

func statOf(pid int) (st stat, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return st, false
	}
	// pid (name) state ppid pgrp session tty tpgid flags ..., where the name
	// may hold anything.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 7 {
		return st, false
	}
	st.state = fields[0]
	var errs [2]error
	st.pgrp, errs[0] = strconv.Atoi(fields[2])
	st.flags, errs[1] = strconv.ParseUint(fields[6], 10, 64)
	return st, errs[0] == nil && errs[1] == nil
}
