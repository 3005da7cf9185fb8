package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/testkit/daemon"
	survival "github.com/goddp/goddp/test/survive/job"
)

// binaries is the folder that holds the programs.
type binaries string

// program is a process that the campaign started: golaunch, a rank, or the store.
type program struct {
	name   string
	rank   int // -1 if the program is not a rank
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
	status string        // "exited with 0", "killed by 9"; valid when done is closed
}

// event is a line by which a worker tells the campaign what happened.
type event struct {
	rank, pid  int
	kind, text string
	at         time.Time
}

// line is a line that a program wrote.
type line struct {
	by   *program
	text string
	at   time.Time
}

// job is the processes of a scenario and their output.
type job struct {
	*scenario
	dir       string // holds all files of the job; the mark of its processes
	programs  []*program
	secondJob []*program // the ranks of a second job at the same address
	answered  int        // how many requests of a stranger were answered
	storePID  int
	board     *survival.Board // of the workers of a job that survives
	lost      []int           // the workers that such a job has lost
	toStep    time.Duration   // from the fault to its next step
	readers   sync.WaitGroup  // the readers end when the programs and all their children have closed their output

	mu      sync.Mutex
	lines   []line
	events  []event
	changed chan struct{} // closed and replaced when lines grows
}

// jobs counts the jobs, so that each gets a loopback address of its own for a store on a fixed port.
var jobs atomic.Uint32

// loopback returns a loopback address that no other job uses.
func loopback() string {
	n := jobs.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%250, byte(n>>8), byte(n))
}

// newJob makes the folder of a job, with hard links to the binaries.
func newJob(s *scenario, bin binaries) (_ *job, err error) {
	j := &job{scenario: s, changed: make(chan struct{})}
	if j.dir, err = os.MkdirTemp(filepath.Dir(string(bin)), fmt.Sprintf("scenario-%d-", s.K)); err != nil {
		return nil, err
	}
	for _, sub := range []string{"tmp", "flight"} {
		if err := os.Mkdir(filepath.Join(j.dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	for _, p := range programs {
		name := filepath.Base(p)
		if err := os.Link(filepath.Join(string(bin), name), filepath.Join(j.dir, name)); err != nil {
			return nil, err
		}
	}
	return j, nil
}

func (j *job) path(name string) string { return filepath.Join(j.dir, name) }

// fill mounts a full disk at the folder for flight records.
func (j *job) fill() error {
	dir := j.path("flight")
	if err := mountSmall(dir); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		return err
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

// lockPrefix is the prefix of the names of the files that daemons lock.
const lockPrefix = "daemon."

// leftovers returns what is left of the job: processes found in /proc, and daemons that cannot be
// found there but still hold a lock.
func (j *job) leftovers() (left []string) {
	for _, p := range processes(j.dir) {
		left = append(left, p.String())
	}
	locks, _ := filepath.Glob(j.path(lockPrefix + "[0-9]"))
	for _, lock := range locks {
		if daemon.Alive(lock) {
			left = append(left, fmt.Sprintf("the process that holds %s", filepath.Base(lock)))
		}
	}
	return left
}

// graceSeconds is how long golaunch waits between SIGTERM and SIGKILL.
const graceSeconds = 2

// start starts the job's processes.
func (j *job) start(ctx context.Context) error {
	if j.survives() {
		return j.startSurvivors()
	}
	workerFault, delay := j.workerFault()
	var stagger time.Duration
	if j.Fault == garbage || j.Fault == stranger { // gives the sender time to reach listeners that close when all have joined
		stagger = 200 * time.Millisecond
	}
	args := []string{
		"-fault", workerFault, "-victim", strconv.Itoa(j.Victim), "-round", strconv.Itoa(j.Round), "-call", strconv.Itoa(j.Call),
		"-delay", delay.String(), "-pick", strconv.Itoa(j.Pick), "-on-error", j.onError(), "-finish", j.path("finish"),
		"-timeout", j.callTimeout().String(), "-rejoin", j.rejoinTime().String(), "-stagger", stagger.String(),
		fmt.Sprintf("-hosts=%v", j.TCP), fmt.Sprintf("-blind=%v", j.isBlind()),
	}
	if j.Daemon != "" {
		args = append(args, "-daemon", j.Daemon, "-lock", j.path(lockPrefix))
	}
	if j.Setup == golaunch {
		return j.run("golaunch", -1, nil, append([]string{
			j.path("golaunch"), "--nproc-per-node", strconv.Itoa(j.World), "--shutdown-timeout", strconv.Itoa(graceSeconds), j.path("worker"), "-loader",
		}, args...)...)
	}
	addr, port := loopback(), "29500"
	agent := "False"
	if j.Setup == separateStore {
		if err := j.run("store", -1, nil, j.path("worker"), "-serve"); err != nil {
			return err
		}
		e, err := j.await(ctx, joinLimit, "a store", func(e event) bool { return e.kind == "store" })
		if err != nil {
			return err
		}
		addr, port, agent = "127.0.0.1", e.text, "True"
		j.storePID = e.pid
	}
	for r := range j.World {
		if err := j.run(fmt.Sprintf("rank %d", r), r, j.rankEnv(r, j.World, addr, port, agent), append([]string{j.path("worker")}, args...)...); err != nil {
			return err
		}
		if r == 0 && j.Fault == twoJobs {
			if err := j.startSecondJob(ctx, addr, port, args); err != nil {
				return err
			}
		}
	}
	return nil
}

// rankEnv returns the environment variables by which a scheduler starts a rank.
func (j *job) rankEnv(rank, size int, addr, port, agent string) []string {
	env := []string{
		fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", size), "MASTER_ADDR=" + addr, "MASTER_PORT=" + port,
		"TORCHELASTIC_USE_AGENT_STORE=" + agent,
	}
	if j.Fault == twoJobs && j.jobDifference() == "job id" {
		env = append(env, "GODDP_JOB_ID=first")
	}
	return env
}

// notInherited matches the variables of the campaign's environment that its jobs must not inherit, because
// they change how goddp or a launcher behaves. inherited matches the exceptions: GODDP_LIB... are the paths
// of this machine's libraries, and GODDP_NO_SMALL_ALLREDUCE chooses the all-reduce to test.
var notInherited = regexp.MustCompile(`^(GODDP|TORCH|NCCL_(ASYNC_ERROR|BLOCKING_WAIT|HEARTBEAT|ENABLE_MONITORING)|PET|RANK|LOCAL_|WORLD_|MASTER_|ROLE_|GROUP_)`)

var inherited = regexp.MustCompile(`^GODDP_(LIB|NO_SMALL_ALLREDUCE=)`)

// run starts one program and reads its output until it and its children have closed it.
func (j *job) run(name string, rank int, env []string, args ...string) error {
	p := &program{name: name, rank: rank, cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	for _, kv := range os.Environ() {
		if !notInherited.MatchString(kv) || inherited.MatchString(kv) {
			p.cmd.Env = append(p.cmd.Env, kv)
		}
	}
	p.cmd.Env = append(p.cmd.Env, markVar+"="+j.dir, "TMPDIR="+j.path("tmp"), "GODDP_FLIGHT_DIR="+j.path("flight"), "GODDP_DEVICE="+j.Device, j.modeEnv())
	if j.Detail {
		p.cmd.Env = append(p.cmd.Env, "GODDP_DEBUG=DETAIL")
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Dir = j.dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	err = p.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return err
	}
	j.programs = append(j.programs, p)
	j.readers.Go(func() {
		defer r.Close()
		in := bufio.NewReader(r)
		for {
			line, err := in.ReadString('\n') // no limit: a process whose output nobody reads would hang
			if line != "" {
				j.note(p, strings.TrimSuffix(line, "\n"))
			}
			if err != nil {
				return
			}
		}
	})
	j.readers.Go(func() {
		p.cmd.Wait()
		p.status = fmt.Sprintf("exited with %d", p.cmd.ProcessState.ExitCode())
		if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
			p.status = fmt.Sprintf("killed by %d", ws.Signal())
		}
		j.note(p, p.status)
		close(p.done)
	})
	return nil
}

// eventLine matches a worker's event, with or without golaunch's prefix.
var eventLine = regexp.MustCompile(`^(?:\[\w+\]: ?)?@chaos (-?\d+) (\d+) (\w+) (.*)$`)

// note keeps a line, and the event in it if there is one.
func (j *job) note(p *program, text string) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line{p, text, now})
	if m := eventLine.FindStringSubmatch(text); m != nil && !slices.Contains(j.secondJob, p) {
		rank, _ := strconv.Atoi(m[1])
		pid, _ := strconv.Atoi(m[2])
		j.events = append(j.events, event{rank, pid, m[3], m[4], now})
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

// joinLimit bounds each wait for an event before the fault.
const joinLimit = 40 * time.Second

// await waits for an event that matches. If none comes before limit, its error says what it waited for.
func (j *job) await(ctx context.Context, limit time.Duration, what string, matches func(event) bool) (event, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen := 0
	for {
		j.mu.Lock()
		fresh, changed := j.events[seen:], j.changed
		j.mu.Unlock()
		for _, e := range fresh {
			if matches(e) {
				return e, nil
			}
		}
		seen += len(fresh)
		select {
		case <-changed:
		case <-ctx.Done():
			return event{}, fmt.Errorf("waited %v for %s", limit, what)
		}
	}
}

// awaitAll waits for an event of a kind from each rank, the victim included only if withVictim.
func (j *job) awaitAll(ctx context.Context, limit time.Duration, kind string, withVictim bool) error {
	for r := range j.World {
		if r == j.Victim && !withVictim {
			continue
		}
		_, err := j.await(ctx, limit, fmt.Sprintf("rank %d to say %q", r, kind), func(e event) bool { return e.rank == r && e.kind == kind })
		if err != nil {
			return err
		}
	}
	return nil
}

// hasEvent reports whether any rank said an event of this kind.
func (j *job) hasEvent(kind string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.ContainsFunc(j.events, func(e event) bool { return e.kind == kind })
}

// texts returns the texts of a rank's events of one kind.
func (j *job) texts(rank int, kind string) (texts []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		if e.rank == rank && e.kind == kind {
			texts = append(texts, e.text)
		}
	}
	return texts
}

// output returns the lines of all programs, each with its time and the program's name.
func (j *job) output() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for _, l := range j.lines {
		fmt.Fprintf(&b, "%s %s: %s\n", l.at.Format("05.000"), l.by.name, l.text)
	}
	return b.String()
}

// wrote returns the lines of all programs as they wrote them.
func (j *job) wrote() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for _, l := range j.lines {
		b.WriteString(l.text + "\n")
	}
	return b.String()
}

// wroteBy returns the lines of one program.
func (j *job) wroteBy(p *program) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var b strings.Builder
	for _, l := range j.lines {
		if l.by == p {
			b.WriteString(l.text + "\n")
		}
	}
	return b.String()
}

// remove kills the processes that are left of the job and removes its folder.
func (j *job) remove() {
	killProcesses(j.dir)
	j.readers.Wait()
	if j.Fault == fullDisk {
		unmount(j.path("flight"))
	}
	os.RemoveAll(j.dir)
}

// keep writes the flight records and the output to the new folder dir.
func (j *job) keep(dir string) error {
	if err := os.CopyFS(dir, os.DirFS(j.path("flight"))); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "output.txt"), []byte(j.output()), 0o644)
}
