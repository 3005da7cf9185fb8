package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// outcome is a state that a job can end in.
type outcome int

const (
	undisturbed outcome = iota // as if nothing had been
	recovered                  // an error everywhere, another group, and the end of the job
	failed                     // as the mode has it
	gone                       // killed by the reaper of a killed golaunch
	unwatched                  // killed by golaunch, whose reaper is dead, and which says so
)

// promised is the outcome that the scenario must have.
func (j *job) promised() outcome {
	passes := j.Fault == hiccup || j.bothered() || j.Fault == suspend || j.trouble() == daemons || j.trouble() == store || j.Mode == none
	if j.Fault == socket { // one that nobody needs, perhaps
		passes = slices.Equal(j.texts(j.Victim, "fault"), []string{"store"}) || !j.said("caught")
	}
	switch {
	case j.trouble() == launcher:
		return gone
	case j.trouble() == reaper:
		return unwatched
	case passes:
		return undisturbed
	case j.Mode == blocking && !j.dies():
		return recovered
	}
	return failed
}

// bothered tells whether the fault is what others do, from the job's start to its end.
func (s *scenario) bothered() bool {
	return s.Fault == garbage || s.Fault == stranger || s.Fault == twoJobs
}

// acting is the time from a failure's deadline, or its discovery, until its
// consequences.
const acting = 2 * time.Second

// deadline is how long after the fault the last process may end, as promised.
func (s *scenario) deadline() time.Duration {
	const lingering = 1200 * time.Millisecond // in mode clean-up
	const leaving = 2 * time.Second           // the store's host waits for the others
	d := acting
	if s.byDeadline() || s.Fault == socket {
		d += s.callTimeout()
	}
	if s.bothered() {
		d += 3 * time.Second // all of the job's life
	}
	if _, length := s.share(); length > 0 {
		d += length
	}
	if s.Fault == suspend {
		d += s.suspension() + time.Duration(s.World+2)*s.resumeInterval()
	}
	if s.Fault == hiccup || s.bothered() || s.Fault == suspend || s.Mode == none {
		return d
	}
	if s.Mode == cleanUp {
		d += lingering
	}
	if s.Mode == blocking {
		d += s.rejoinTime()
	}
	if s.Setup == golaunch {
		return d + graceSeconds*time.Second
	}
	if s.trouble() == stop { // then the victim is let go on, and ends as well
		d *= 2
	}
	return d + leaving
}

// end waits until nothing of the job is left, no longer than until limit after
// the fault.
func (j *job) end(at time.Time, limit time.Duration, v *verdict) {
	deadline := time.After(time.Until(at.Add(limit)))
	for _, p := range slices.Backward(j.programs) {
		if p.name == "store" { // the first, whom nobody needs any more
			syscall.Kill(j.storePID, syscall.SIGKILL)
		}
		select {
		case <-p.done:
			continue
		case <-deadline:
		}
		v.hung = true
		v.wrongf("not over %.1f s after the fault: %v", limit.Seconds(), processes(j.dir))
		return
	}
	// A launcher that was not killed must leave nothing behind it, not even
	// for a moment.
	for left := j.leftovers(); len(left) > 0; left = j.leftovers() {
		if j.trouble() != launcher || time.Since(at) > limit {
			v.orphans = true
			v.wrongf("left over: %v", left)
			killProcesses(j.dir)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	v.took = time.Since(at)
	j.readers.Wait()
	v.told = j.told(at)
	if litter, err := os.ReadDir(j.path("tmp")); err != nil || len(litter) > 0 {
		v.wrongf("left in the temporary folder: %v %v", litter, err)
	}
}

// told is how long it took until the last rank but the victim had its error:
// from the deadline, or from the fault where that takes none.
func (j *job) told(at time.Time) (longest time.Duration) {
	if j.byDeadline() {
		at = at.Add(j.callTimeout())
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		if e.kind == "caught" && e.rank != j.Victim {
			longest = max(longest, e.at.Sub(at))
		}
	}
	return longest
}

// judge compares how the job ended with what is promised.
func (j *job) judge(v *verdict) {
	for r := range j.World {
		for _, text := range j.texts(r, "wrong") {
			v.wrongf("rank %d: %s", r, text)
		}
	}
	for _, bad := range []string{"panic:", "fatal error:", "[signal SIG"} {
		if strings.Contains(j.wrote(), bad) {
			v.wrongf("a process crashed")
		}
	}
	if j.Fault == overlap {
		if texts := j.texts(j.Victim, "refused"); len(texts) != 1 || !j.names(texts[0]) {
			v.wrongf("rank %d was refused with %q", j.Victim, texts)
		}
	}
	if j.answered > 0 {
		v.wrongf("%d requests of another user were answered", j.answered)
	}
	if j.Fault == twoJobs {
		j.judgeOthers(v)
	}
	switch j.promised() {
	case undisturbed:
		j.judgeDone(v)
		for r := range j.World {
			for _, text := range j.texts(r, "caught") {
				v.wrongf("rank %d got an error: %s", r, text)
			}
		}
		late := j.Mode == none && (j.trouble() == stop || j.trouble() == delay)
		if late && !strings.Contains(j.wrote(), "Watchdog caught collective operation timeout") {
			v.wrongf("no log line about the timeout")
		}
	case recovered:
		j.judgeDone(v)
		j.judgeErrors(v)
		j.judgeVictim(v)
		j.judgeRecords(v)
	case unwatched:
		if p := j.programs[0]; p.status != "exited with 1" || !strings.Contains(j.wrote(), "golaunch: the reaper (pid ") {
			v.wrongf("golaunch %s and does not say that its reaper is dead", p.status)
		}
	case failed:
		j.judgeExits(v)
		if j.Setup == golaunch {
			j.judgeReport(v)
		} else {
			j.judgeErrors(v)
		}
		j.judgeVictim(v)
		j.judgeRecords(v)
	}
}

// judgeDone checks that all ranks came to the end.
func (j *job) judgeDone(v *verdict) {
	for _, p := range j.programs {
		if p.name != "store" && p.status != "exited with 0" {
			v.wrongf("%s %s", p.name, p.status)
		}
	}
	for r := range j.World {
		if n := len(j.texts(r, "done")); n != 1 {
			v.wrongf("rank %d came %d times to the end", r, n)
		}
	}
}

// judgeExits checks the exit codes of a job that failed.
func (j *job) judgeExits(v *verdict) {
	ends := map[fault]string{kill: "killed by 9", exit: "exited with 7"}
	survivor := map[mode]string{async: "exited with 1", cleanUp: "exited with 5", blocking: "exited with 6"}[j.Mode]
	victim, dead := ends[j.trouble()]
	if !dead {
		victim = survivor
	}
	for _, p := range j.programs {
		want := survivor
		switch {
		case p.name == "store":
			continue
		case p.name == "golaunch" && j.trouble() == kill:
			want = "exited with 137"
		case p.name == "golaunch" || p.rank == j.Victim:
			want = victim
		}
		if p.status != want {
			v.wrongf("%s %s, not %s", p.name, p.status, want)
		}
	}
	if j.Mode != cleanUp || j.Setup == golaunch {
		return
	}
	for r := range j.World {
		if (r != j.Victim || !dead) && len(j.texts(r, "later")) != 1 {
			v.wrongf("rank %d did not live on and find its group broken", r)
		}
	}
}

// names tells whether a text says that the victim is the culprit.
func (j *job) names(text string) bool {
	switch j.trouble() {
	case kill, exit:
		return strings.Contains(text, fmt.Sprintf("rank %d lost", j.Victim))
	case stop, delay:
		// A rank that is late has a record, and gives it when it is asked.
		return strings.Contains(text, fmt.Sprintf("waiting for ranks [%d]", j.Victim)) &&
			(j.trouble() == stop || !strings.Contains(text, "left no record"))
	case skip, resize:
		if j.blind() { // until the deadline, when the records are compared
			return strings.Contains(text, "timed out after") && strings.Contains(text, j.differ())
		}
		return regexp.MustCompile(fmt.Sprintf(`ranks called different collectives:.* (rank %[1]d|ranks \[%[1]d\]) (AllReduce|Barrier)`, j.Victim)).MatchString(text)
	case stale:
		return modified.MatchString(text) && strings.Contains(text, fmt.Sprintf("by rank %d:", j.Victim))
	case overlap: // with both ranges
		return regexp.MustCompile(fmt.Sprintf(`rank %d: \w+: (dst|src) \[0x\w+, 0x\w+\)( of \w+)? overlaps (dst|src) \[0x\w+, 0x\w+\)`, j.Victim)).MatchString(text)
	}
	return false
}

// modified matches what a backward pass over a parameter says that was written too early:
// the operation, the parameter and both versions.
var modified = regexp.MustCompile(`the backward of Mul needs variable "w" float32\[\] as it was at version \d+, and .* has made it version \d+`)

// differ is what the records of ranks that called different things say of it.
// Which of two is right they cannot tell.
func (j *job) differ() string {
	if j.World == 2 {
		return "ranks 0, 1 called different things as #"
	}
	return fmt.Sprintf("rank %d called something else as #", j.Victim)
}

// judgeErrors checks what the ranks caught.
func (j *job) judgeErrors(v *verdict) {
	v.accused = true
	var all []string
	for r := range j.World {
		texts := j.texts(r, "caught")
		all = append(all, texts...)
		if j.Fault != socket && r == j.Victim {
			continue
		}
		if len(texts) != 1 || j.Fault != socket && !j.names(texts[0]) {
			v.unnamedf("rank %d caught %q", r, texts)
		}
	}
	if j.Fault == socket {
		j.judgeSocket(v, all)
	}
}

// judgeVictim checks what the victim caught, where that is an error of its own.
func (j *job) judgeVictim(v *verdict) {
	if texts := j.texts(j.Victim, "caught"); j.Fault == stale && (len(texts) != 1 || !modified.MatchString(texts[0])) {
		v.unnamedf("rank %d, which wrote the parameter, caught %q", j.Victim, texts)
	}
}

// lostRank finds whom an error tells to be lost, and lostCoordinator what the victim says if that
// connection was the coordinator's.
var (
	lostRank        = regexp.MustCompile(`rank (\d) lost`)
	lostCoordinator = regexp.MustCompile(`the coordinator, in .* is lost`)
)

// judgeSocket checks what was said when a connection broke: those at its ends
// take each other for lost, and the rest hear it from one of them.
func (j *job) judgeSocket(v *verdict, texts []string) {
	blamed := map[string]bool{}
	for _, text := range texts {
		m := lostRank.FindStringSubmatch(text)
		if m == nil && strings.Contains(text, fmt.Sprintf("rank %d: ", j.Victim)) && lostCoordinator.MatchString(text) {
			continue // as an error, or in golaunch's report
		}
		if m == nil {
			v.unnamedf("nobody is lost: %q", text)
			return
		}
		blamed[m[1]] = true
	}
	delete(blamed, fmt.Sprint(j.Victim))
	if len(blamed) > 1 {
		v.unnamedf("one connection of rank %d broke, and lost are %v: %q", j.Victim, slices.Sorted(maps.Keys(blamed)), texts)
	}
}

// rootCause matches the part of golaunch's report that says who was it.
var rootCause = regexp.MustCompile(`(?s)Root Cause \(first observed failure\):(.*?)-----`)

// judgeReport checks golaunch's report.
func (j *job) judgeReport(v *verdict) {
	v.accused = true
	m := rootCause.FindStringSubmatch(j.wrote())
	if m == nil {
		v.unnamedf("golaunch gave no report")
		return
	}
	root := m[1]
	itself := regexp.MustCompile(fmt.Sprintf(`rank +: %d \(`, j.Victim)).MatchString(root)
	var names bool
	switch j.trouble() {
	case kill:
		names = itself && strings.Contains(root, "killed by SIGKILL")
	case exit:
		names = itself && regexp.MustCompile(`exitcode +: 7 \(`).MatchString(root)
	case socket:
		texts := []string{root}
		for r := range j.World {
			for _, text := range j.texts(r, "caught") {
				if !strings.Contains(text, "signal: terminated") { // golaunch stopped it
					texts = append(texts, text)
				}
			}
		}
		j.judgeSocket(v, texts)
		return
	case stale: // golaunch may have seen another rank end first, which says whose fault it is
		names = itself && modified.MatchString(root) || j.names(root)
	default:
		names = j.names(root)
	}
	if !names {
		v.unnamedf("golaunch's root cause is %q", root)
	}
}

// judgeRecords checks what goddp analyze reads in the flight records. Of a
// connection that broke they cannot tell which end did. Under golaunch also a
// rank that was killed leaves its record; one that broke the group itself, and goes on
// with another, has no call that failed, and leaves none.
func (j *job) judgeRecords(v *verdict) {
	if j.Fault == fullDisk || j.Fault == socket {
		return
	}
	v.read = true
	for r := range j.World {
		if j.Fault == stale && j.Mode == blocking && r == j.Victim {
			continue
		}
		if _, err := os.Stat(j.path(fmt.Sprintf("flight/rank_%d.json", r))); err != nil && j.Setup == golaunch {
			v.unreadf("no record of rank %d: %v", r, err)
		}
	}
	out, err := exec.Command(j.path("goddp"), "analyze", "--json", j.path("flight")).Output()
	var report struct {
		Findings []struct {
			Ranks   []int
			Summary string
		}
	}
	var code *exec.ExitError
	if errors.As(err, &code) {
		err = nil
		if len(code.Stderr) > 0 {
			err = errors.New(strings.TrimSpace(string(code.Stderr)))
		}
	}
	if err == nil {
		err = json.Unmarshal(out, &report)
	}
	switch {
	case err != nil:
		v.unreadf("flight records: %v", err)
	case len(report.Findings) == 0:
		v.unreadf("goddp analyze finds nothing")
	case j.trouble() == skip || j.trouble() == resize:
		if summary := report.Findings[0].Summary; !strings.Contains(summary, j.differ()) {
			v.unreadf("goddp analyze: %s", summary)
		}
	case !slices.Equal(report.Findings[0].Ranks, []int{j.Victim}):
		v.unreadf("goddp analyze: %s", report.Findings[0].Summary)
	}
}
