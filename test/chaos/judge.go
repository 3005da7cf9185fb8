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

// outcome is a state in which a job can end.
type outcome int

const (
	undisturbed outcome = iota // all ranks finish as if there were no fault
	recovered                  // all ranks get an error, make another group, and finish
	failed                     // all ranks fail as the error mode promises
	reaped                     // golaunch was killed: its reaper kills the ranks
	survived                   // the workers that are left go on
	unreaped                   // the reaper was killed: golaunch kills the ranks and says so
)

// promised returns the outcome that the scenario must have.
func (j *job) promised() outcome {
	passes := j.Fault == hiccup || j.isBothered() || j.Fault == suspend || j.trouble() == daemons || j.trouble() == store || j.Mode == none
	if j.Fault == socket { // perhaps no rank needs the connection that broke
		passes = slices.Equal(j.texts(j.Victim, "fault"), []string{"store"}) || !j.hasEvent("caught")
	}
	switch {
	case j.survives():
		return survived
	case j.trouble() == launcher:
		return reaped
	case j.trouble() == reaper:
		return unreaped
	case passes:
		return undisturbed
	case j.Mode == blocking && !j.victimDies():
		return recovered
	}
	return failed
}

// isBothered reports whether the fault comes from outside the job and lasts from its start to its end.
func (s *scenario) isBothered() bool {
	return s.Fault == garbage || s.Fault == stranger || s.Fault == twoJobs
}

// reactionTime is the promised time from a failure's deadline, or its discovery, to its consequences.
const reactionTime = 2 * time.Second

// deadline returns the promised time from the fault to the end of the last process.
func (s *scenario) deadline() time.Duration {
	const lingering = 1200 * time.Millisecond // how long workers live on in mode clean-up
	const leaving = 2 * time.Second           // how long the rank with the store waits for the others
	d := reactionTime
	if s.survives() { // a worker is killed by golaunch, replaced, and the job ends
		return d + s.silenceLimit() + 5*time.Second
	}
	if s.needsDeadline() || s.Fault == socket {
		d += s.callTimeout()
	}
	if s.isBothered() {
		d += 3 * time.Second // the fault lasts from the job's start to its end
	}
	if _, length := s.workerFault(); length > 0 {
		d += length
	}
	if s.Fault == suspend {
		d += s.suspension() + time.Duration(s.World+2)*s.resumeInterval()
	}
	if s.Fault == hiccup || s.isBothered() || s.Fault == suspend || s.Mode == none {
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
	if s.trouble() == stop { // the victim ends too, after the SIGCONT that comes when the others have ended
		d *= 2
	}
	return d + leaving
}

// awaitEnd waits until all processes of the job have ended, at most until limit after the fault. It
// reports processes and files that are left over.
func (j *job) awaitEnd(at time.Time, limit time.Duration, v *verdict) {
	deadline := time.After(time.Until(at.Add(limit)))
	for _, p := range slices.Backward(j.programs) {
		if p.name == "store" { // the first program, so the last of this loop: all ranks have ended
			syscall.Kill(j.storePID, syscall.SIGKILL)
		}
		select {
		case <-p.done:
			continue
		case <-deadline:
		}
		v.isHung = true
		v.wrongf("processes still ran %.1f s after the fault: %v", limit.Seconds(), processes(j.dir))
		return
	}
	// A golaunch that was not killed must leave no process behind, not even for a moment.
	for left := j.leftovers(); len(left) > 0; left = j.leftovers() {
		if j.trouble() != launcher || time.Since(at) > limit {
			v.hasOrphans = true
			v.wrongf("%d processes were left over: %v", len(left), left)
			killProcesses(j.dir)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	v.toEnd = time.Since(at)
	j.readers.Wait()
	v.toError = j.timeToError(at)
	if files, err := os.ReadDir(j.path("tmp")); err != nil || len(files) > 0 {
		v.wrongf("files were left in the temporary folder: %v %v", files, err)
	}
}

// timeToError returns the time until the last rank other than the victim had its error. It counts
// from the call's deadline, or from the fault at if ranks notice the fault without a deadline. In a job that
// survives it is the time from the fault to the next step.
func (j *job) timeToError(at time.Time) (longest time.Duration) {
	if j.survives() {
		return j.toStep
	}
	if j.needsDeadline() {
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

// judge compares the end of the job with what comm and golaunch promise.
func (j *job) judge(v *verdict) {
	for r := range j.World {
		for _, text := range j.texts(r, "wrong") {
			v.wrongf("rank %d found %s", r, text)
		}
	}
	for _, bad := range []string{"panic:", "fatal error:", "[signal SIG"} {
		if strings.Contains(j.wrote(), bad) {
			v.wrongf("a process crashed")
		}
	}
	if j.Fault == overlap {
		if texts := j.texts(j.Victim, "refused"); len(texts) != 1 || !j.namesVictim(texts[0]) {
			v.wrongf("rank %d got no error about operands that overlap: %q", j.Victim, texts)
		}
	}
	if j.answered > 0 {
		v.wrongf("%d requests of another user were answered", j.answered)
	}
	if j.Fault == twoJobs {
		j.judgeSecondJob(v)
	}
	switch j.promised() {
	case undisturbed:
		j.judgeDone(v)
		for r := range j.World {
			for _, text := range j.texts(r, "caught") {
				v.wrongf("rank %d got an error: %s", r, text)
			}
		}
		timesOut := j.Mode == none && (j.trouble() == stop || j.trouble() == delay)
		if timesOut && !strings.Contains(j.wrote(), "Watchdog caught collective operation timeout") {
			v.wrongf("no log line reports the timeout")
		}
	case survived:
		j.judgeSurvivors(v)
	case recovered:
		j.judgeDone(v)
		j.judgeErrors(v)
		j.judgeVictim(v)
		j.judgeRecords(v)
	case unreaped:
		if p := j.programs[0]; p.status != "exited with 1" || !strings.Contains(j.wrote(), "golaunch: the reaper (pid ") {
			v.wrongf("golaunch %s and did not report that its reaper was dead", p.status)
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

// judgeDone checks that all ranks finished.
func (j *job) judgeDone(v *verdict) {
	for _, p := range j.programs {
		if p.name != "store" && p.status != "exited with 0" {
			v.wrongf("%s %s", p.name, p.status)
		}
	}
	for r := range j.World {
		if n := len(j.texts(r, "done")); n != 1 {
			v.wrongf("rank %d finished %d times, not once", r, n)
		}
	}
}

// judgeExits checks the exit codes of a job that failed.
func (j *job) judgeExits(v *verdict) {
	ends := map[fault]string{kill: "killed by 9", exit: "exited with 7"}
	survivor := map[mode]string{async: "exited with 1", cleanUp: "exited with 5", blocking: "exited with 6"}[j.Mode]
	victim, isDead := ends[j.trouble()]
	if !isDead {
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
		if (r != j.Victim || !isDead) && len(j.texts(r, "later")) != 1 {
			v.wrongf("rank %d did not live on and get an error from its group", r)
		}
	}
}

// namesVictim reports whether the text of an error or a report names the victim as the culprit.
func (j *job) namesVictim(text string) bool {
	switch j.trouble() {
	case kill, exit:
		return strings.Contains(text, fmt.Sprintf("rank %d lost", j.Victim))
	case stop, delay:
		// A rank that is only late has a record, and answers when other ranks ask for it.
		return regexp.MustCompile(fmt.Sprintf(`waiting for rank %d\b`, j.Victim)).MatchString(text) &&
			(j.trouble() == stop || !strings.Contains(text, "left no record"))
	case skip, resize:
		if j.isBlind() { // the ranks compare their records at the deadline
			return strings.Contains(text, "timed out after") && strings.Contains(text, j.difference())
		}
		return regexp.MustCompile(fmt.Sprintf(`ranks called different collectives:.* rank %[1]d (AllReduce|Barrier)`, j.Victim)).MatchString(text)
	case stale:
		return modified.MatchString(text) && strings.Contains(text, fmt.Sprintf("by rank %d:", j.Victim))
	case overlap: // the error holds both address ranges
		return regexp.MustCompile(fmt.Sprintf(`rank %d: \w+: (dst|src) \[0x\w+, 0x\w+\)( of \w+)? overlaps (dst|src) \[0x\w+, 0x\w+\)`, j.Victim)).MatchString(text)
	}
	return false
}

// modified matches the error of a backward pass over a parameter that was written too early: it names
// the operation, the parameter and both versions.
var modified = regexp.MustCompile(`the backward of Mul needs variable "w" float32\[\] as it was at version \d+, and .* has made it version \d+`)

// difference returns the text by which flight records report that the victim called something else.
// The records of two ranks cannot tell which of them is right.
func (j *job) difference() string {
	if j.World == 2 {
		return "ranks 0, 1 called different things as #"
	}
	return fmt.Sprintf("rank %d called something else as #", j.Victim)
}

// judgeErrors checks that the errors of all other ranks name the victim.
func (j *job) judgeErrors(v *verdict) {
	v.hasCulprit = true
	var all []string
	for r := range j.World {
		texts := j.texts(r, "caught")
		all = append(all, texts...)
		if j.Fault != socket && r == j.Victim {
			continue
		}
		if len(texts) != 1 || j.Fault != socket && !j.namesVictim(texts[0]) {
			v.unnamedf("rank %d caught no error that names rank %d: %q", r, j.Victim, texts)
		}
	}
	if j.Fault == socket {
		j.judgeSocket(v, all)
	}
}

// judgeVictim checks the victim's error for the one fault, a stale graph, that gives it a separate error.
func (j *job) judgeVictim(v *verdict) {
	if texts := j.texts(j.Victim, "caught"); j.Fault == stale && (len(texts) != 1 || !modified.MatchString(texts[0])) {
		v.unnamedf("rank %d, which wrote the parameter, caught no error that says so: %q", j.Victim, texts)
	}
}

// lostRank finds the rank that an error reports as lost. lostCoordinator matches the victim's error if
// its connection to the coordinator broke.
var (
	lostRank        = regexp.MustCompile(`rank (\d) lost`)
	lostCoordinator = regexp.MustCompile(`the coordinator, in .* is lost`)
)

// judgeSocket checks the errors after a connection broke. Each of its two ends reports the other as
// lost; the other ranks get the error of one end.
func (j *job) judgeSocket(v *verdict, texts []string) {
	blamed := map[string]bool{}
	for _, text := range texts {
		m := lostRank.FindStringSubmatch(text)
		if m == nil && strings.Contains(text, fmt.Sprintf("rank %d: ", j.Victim)) && lostCoordinator.MatchString(text) {
			continue // the text is the victim's error or golaunch's report of it
		}
		if m == nil {
			v.unnamedf("an error names no lost rank: %q", text)
			return
		}
		blamed[m[1]] = true
	}
	delete(blamed, fmt.Sprint(j.Victim))
	if len(blamed) > 1 {
		v.unnamedf("one connection of rank %d broke, and the errors name ranks %v: %q", j.Victim, slices.Sorted(maps.Keys(blamed)), texts)
	}
}

// rootCause matches the part of golaunch's report about the first rank that failed.
var rootCause = regexp.MustCompile(`(?s)Root Cause \(first observed failure\):(.*?)-----`)

// judgeReport checks that golaunch's report names the victim.
func (j *job) judgeReport(v *verdict) {
	v.hasCulprit = true
	m := rootCause.FindStringSubmatch(j.wrote())
	if m == nil {
		v.unnamedf("golaunch gave no report")
		return
	}
	root := m[1]
	isVictim := regexp.MustCompile(fmt.Sprintf(`rank +: %d \(`, j.Victim)).MatchString(root)
	var isNamed bool
	switch j.trouble() {
	case kill:
		isNamed = isVictim && strings.Contains(root, "killed by SIGKILL")
	case exit:
		isNamed = isVictim && regexp.MustCompile(`exitcode +: 7 \(`).MatchString(root)
	case socket:
		texts := []string{root}
		for r := range j.World {
			for _, text := range j.texts(r, "caught") {
				if !strings.Contains(text, "signal: terminated") { // golaunch ended that rank
					texts = append(texts, text)
				}
			}
		}
		j.judgeSocket(v, texts)
		return
	case stale: // golaunch may see another rank end first; that rank's error names the victim
		isNamed = isVictim && modified.MatchString(root) || j.namesVictim(root)
	default:
		isNamed = j.namesVictim(root)
	}
	if !isNamed {
		v.unnamedf("golaunch's root cause does not name rank %d: %q", j.Victim, root)
	}
}

// judgeRecords checks that goddp analyze finds the victim in the flight records. The records cannot
// tell which end of a connection broke. Under golaunch a killed rank leaves its record too. A rank
// that broke its group itself and goes on with another has no failed call and leaves no record.
func (j *job) judgeRecords(v *verdict) {
	if j.Fault == fullDisk || j.Fault == socket {
		return
	}
	v.hasRecords = true
	for r := range j.World {
		if j.Fault == stale && j.Mode == blocking && r == j.Victim {
			continue
		}
		if _, err := os.Stat(j.path(fmt.Sprintf("flight/rank_%d.json", r))); err != nil && j.Setup == golaunch {
			v.unreadf("rank %d left no flight record: %v", r, err)
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
		v.unreadf("goddp analyze failed: %v", err)
	case len(report.Findings) == 0:
		v.unreadf("goddp analyze finds no culprit")
	case j.trouble() == skip || j.trouble() == resize:
		if summary := report.Findings[0].Summary; !strings.Contains(summary, j.difference()) {
			v.unreadf("goddp analyze does not name rank %d: %s", j.Victim, summary)
		}
	case !slices.Equal(report.Findings[0].Ranks, []int{j.Victim}):
		v.unreadf("goddp analyze does not name rank %d: %s", j.Victim, report.Findings[0].Summary)
	}
}
