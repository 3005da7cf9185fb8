package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/cmd/internal/version"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/printer"
	"github.com/goddp/goddp/launcher"
)

// golaunch --hosts runs on the user's machine. It starts a golaunch on each host by ssh, and talks to it by
// the standard streams of the ssh command. hostnode.go is what runs on the hosts.

// hostSpec is an entry of --hosts: a destination of ssh, and its number of workers, "" for --nproc-per-node.
type hostSpec struct{ name, workers string }

func parseHosts(text string) (hosts []hostSpec, err error) {
	seen := map[string]bool{}
	for entry := range strings.SplitSeq(text, ",") {
		h := hostSpec{name: strings.TrimSpace(entry)}
		if name, workers, ok := strings.Cut(h.name, ":"); ok {
			if _, err := parseNproc(workers); err != nil {
				return nil, fmt.Errorf("%s: %w", entry, err)
			}
			h = hostSpec{name, workers}
		}
		if h.name == "" || strings.HasPrefix(h.name, "-") || strings.ContainsAny(h.name, " \t'\"") || seen[h.name] {
			return nil, fmt.Errorf("%q: want a list of distinct ssh host names, such as a:4,b:4", entry)
		}
		seen[h.name] = true
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// Messages from the user's side, one line each. The first line is a nodeRequest.
const (
	beatLine = "alive"      // every beatInterval
	stopLine = "stop "      // followed by a signal's number
	nodeFlag = "--for-host" // the only argument of the golaunch that ssh starts
)

const (
	beatInterval = time.Second
	// silence is how long a side waits for the other one before it takes the connection for lost.
	silence = 10 * time.Second
	// hostsEnd is the time for the hosts to end by themselves after one of them has failed.
	hostsEnd = 2 * time.Second
	// sameRequest is the time within which repeated signals count as one, as in package launcher.
	sameRequest = time.Second
)

// nodeRequest is what the golaunch on one host runs.
type nodeRequest struct {
	Version string   // the version of the user's golaunch; the host's golaunch must have the same
	Args    []string // flags, the program and its arguments
	Dir     string   // the folder to run in
	Program string   // the program's file, "" if it is to be found on PATH
	Sum     string   // hexadecimal SHA-256 of the program's file
	Env     []string // variables to set
	Token   string   // the job's secret
	Brief   bool     // the report of a failure is one line, because another host prints the full report
}

// forwarded are the prefixes of the variables that the workers on all hosts get.
var forwarded = []string{jobenv.Prefix, "NCCL_", "GLOO_", jobenv.ThreadsVar + "=", "PYTHON_EXEC=", "TORCH_", "TORCHELASTIC_"}

// runHosts runs the job on the hosts of --hosts, and returns its exit code.
func runHosts(ctx context.Context, o *options, signals <-chan os.Signal) int {
	j, err := newHostsJob(ctx, o)
	if err != nil {
		return complain(err)
	}
	return j.run(signals)
}

// hostsJob is a job on hosts that golaunch reaches by ssh.
type hostsJob struct {
	ssh     []string      // the ssh command
	grace   time.Duration // the time between two requests to stop
	elastic bool          // the job continues if a host fails
	hosts   []*sshHost
	out     *printer.Printer
}

// sshHost is one host of the job.
type sshHost struct {
	job     *hostsJob
	name    string
	request []byte
	lines   chan string        // lines to send to the host
	ctx     context.Context    // the context of the ssh command
	kill    context.CancelFunc // kills the ssh command, and so the remote golaunch
	code    int                // the ssh command's exit code, once it has ended
}

func newHostsJob(ctx context.Context, o *options) (*hostsJob, error) {
	switch n := o.rendezvous.nodes; {
	case n.least == n.most && n.most > 1 && n.most != len(o.hosts):
		return nil, usagef("--nnodes is %d, but --hosts names %d hosts", n.most, len(o.hosts))
	case n.least > len(o.hosts):
		return nil, usagef("--nnodes %d:%d needs at least %d hosts, but --hosts names %d", n.least, n.most, n.least, len(o.hosts))
	case o.rendezvous.backend == "etcd" && o.rendezvous.endpoint == "":
		return nil, usagef("--rdzv-backend etcd needs --rdzv-endpoint")
	}
	command := o.command
	request := nodeRequest{Version: version.Of("golaunch")}
	var err error
	if request.Dir, err = os.Getwd(); err != nil {
		return nil, err
	}
	isPath := strings.ContainsRune(command[0], filepath.Separator) || filepath.Ext(command[0]) == ".py"
	if info, err := os.Stat(command[0]); isPath || err == nil && !info.IsDir() { // otherwise the command is on PATH
		if request.Program, err = filepath.Abs(command[0]); err == nil {
			request.Sum, err = sumOf(request.Program)
		}
		if err != nil {
			return nil, usagef("--hosts: %w: want a program at the same path on all hosts; build one from a package with \"go build\"", err)
		}
	}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		isSecret := name == jobenv.TokenVar || name == jobenv.TokenFileVar
		if !isSecret && slices.ContainsFunc(forwarded, func(prefix string) bool { return strings.HasPrefix(v, prefix) }) {
			request.Env = append(request.Env, v)
		}
	}
	secret, err := handshake.ReadSecret(jobenv.Security{
		TokenFile: cmp.Or(o.rendezvous.tokenFile, os.Getenv(jobenv.TokenFileVar)), Token: os.Getenv(jobenv.TokenVar),
	})
	if err != nil {
		return nil, o.rendezvous.nameTokenFile(err)
	}
	request.Token = cmp.Or(string(secret), rand.Text()+rand.Text())

	ownLine := func(format string, args ...any) []byte { return fmt.Appendf(nil, "golaunch: "+format+"\n", args...) }
	isRange := o.rendezvous.nodes.least < o.rendezvous.nodes.most
	j := &hostsJob{
		ssh:     strings.Fields(o.ssh),
		grace:   o.shutdownTimeout + hostsEnd,
		elastic: isRange || o.onFailure != launcher.Restart,
		out:     printer.New(os.Stdout, os.Stderr, ownLine),
	}
	if len(j.ssh) == 0 {
		return nil, usagef("--ssh is empty: want a command")
	}
	endpoint := o.rendezvous.endpoint
	if endpoint == "" {
		addr := o.rendezvous.masterAddr
		if addr == "" {
			if addr, err = j.address(ctx, o.hosts[0].name); err != nil {
				return nil, err
			}
		}
		endpoint = net.JoinHostPort(addr, strconv.Itoa(20000+mathrand.IntN(10000)))
	}
	id := cmp.Or(o.rendezvous.runID, rand.Text()[:8])
	for i, h := range o.hosts {
		r := request
		r.Brief = i > 0
		r.Args = append(r.Args, o.given...)
		r.Args = append(r.Args, "--rdzv-endpoint", endpoint, "--rdzv-id", id)
		if len(o.hosts) > 1 && !isRange {
			r.Args = append(r.Args, "--nnodes", strconv.Itoa(len(o.hosts)), "--node-rank", strconv.Itoa(i))
		}
		if h.workers != "" {
			r.Args = append(r.Args, "--nproc-per-node", h.workers)
		}
		r.Args = append(r.Args, command...)
		text, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		host := &sshHost{job: j, name: h.name, request: append(text, '\n'), lines: make(chan string, 8)}
		host.ctx, host.kill = context.WithCancel(ctx)
		j.hosts = append(j.hosts, host)
	}
	return j, nil
}

// givenFlags returns the flags that the user gave, except those for this side.
func givenFlags(all *pflag.FlagSet) (flags []string) {
	all.VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains([]string{"hosts", "ssh", "token-file", "rdzv-endpoint", "rdzv-id", "master-addr"}, f.Name) {
			flags = append(flags, "--"+f.Name+"="+f.Value.String())
		}
	})
	return flags
}

// address returns the address of a host according to ssh's configuration.
func (j *hostsJob) address(ctx context.Context, host string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, silence) // the configuration may run commands
	defer cancel()
	out, err := exec.CommandContext(ctx, j.ssh[0], slices.Concat(j.ssh[1:], []string{"-G", host})...).Output()
	if err != nil {
		return "", fmt.Errorf("ssh -G %s: %w", host, err)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "hostname "); ok {
			return strings.TrimSpace(name), nil
		}
	}
	return "", fmt.Errorf("ssh -G %s names no hostname", host)
}

// sumOf returns the hexadecimal SHA-256 of a file.
func sumOf(path string) (string, error) {
	f, err := files.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// run starts the hosts, forwards signals to all of them, and waits until all have ended. It returns the exit code
// of the host that failed first, with two exceptions:
//   - An elastic job continues without a failed host. For an elastic job, run returns 0 if a host succeeded, else the
//     exit code of the host that ended last.
//   - If the connection to a host is lost, the other hosts stop. They may end before ssh detects the loss. run
//     nevertheless returns the exit code of the lost host.
func (j *hostsJob) run(signals <-chan os.Signal) (code int) {
	const stopped = 128 + int(syscall.SIGTERM)
	ended := make(chan *sshHost)
	succeeded := false
	running := slices.Clone(j.hosts)
	for _, h := range running {
		go func() {
			h.run()
			ended <- h
		}()
	}
	tell := func(line string) {
		for _, h := range running {
			select {
			case h.lines <- line:
			default: // the host reads nothing, and will treat the connection as lost
			}
		}
	}
	stop := func(sig syscall.Signal) { tell(stopLine + strconv.Itoa(int(sig))) }
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	requests := 0 // number of requests to stop, by the user or because a host has failed; the second one kills the workers
	var (
		first   os.Signal // the user's first signal; nil before it has come
		firstAt time.Time
		late    <-chan time.Time
	)
	wait := func() {
		if late = time.After(hostsEnd); requests == 1 {
			late = time.After(j.grace)
		}
	}
	for len(running) > 0 {
		select {
		case sig := <-signals:
			if sig == first && time.Since(firstAt) < sameRequest {
				break
			}
			if first == nil {
				first, firstAt = sig, time.Now()
			}
			stop(sig.(syscall.Signal))
			requests = min(requests+1, 2)
			wait()
		case <-beat.C:
			tell(beatLine)
		case <-late:
			if late = nil; requests == 2 {
				for _, h := range running {
					j.complain(h, "it does not end: giving it up")
					h.kill()
				}
				break
			}
			stop(syscall.SIGTERM)
			requests++
			wait()
		case h := <-ended:
			running = slices.DeleteFunc(running, func(other *sshHost) bool { return other == h })
			succeeded = succeeded || h.code == 0
			if code == 0 || j.elastic || code == stopped && requests == 0 && h.code != 0 {
				code = h.code
			}
			if j.elastic && succeeded {
				code = 0
			}
			if h.code != 0 && late == nil && !j.elastic {
				wait()
			}
		}
	}
	grace := j.grace
	if first != nil {
		grace = time.Second
	}
	if err := j.out.Close(grace, signals); err != nil && code == 0 {
		code = exitFailure
	}
	return code
}

// complain prints a line about a host.
func (j *hostsJob) complain(h *sshHost, why string) {
	j.out.Stderr.Put(fmt.Appendf(nil, "golaunch: host %s: %s\n", h.name, why))
}

// run runs the host's ssh command until it ends.
func (h *sshHost) run() {
	h.code = exitFailure
	// The path of this executable is tried first: hosts often share their folders, or have equal ones.
	self, err := os.Executable()
	if err != nil {
		self = "golaunch"
	}
	script := fmt.Sprintf("p=%s; [ -x \"$p\" ] || p=golaunch; exec \"$p\" %s", shellQuote(self), nodeFlag)
	options := []string{"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3",
		h.name, "exec sh -c " + shellQuote(script)} // the account's shell may be none of POSIX
	cmd := exec.CommandContext(h.ctx, h.job.ssh[0], slices.Concat(h.job.ssh[1:], options)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C on the terminal is golaunch's to pass on
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		h.job.complain(h, err.Error())
		return
	}
	stdout, stderr := &lineWriter{host: h, to: h.job.out.Stdout}, &lineWriter{host: h, to: h.job.out.Stderr}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		h.job.complain(h, err.Error())
		return
	}
	go h.write(stdin) // until the ssh command ends
	err = cmd.Wait()
	h.kill() // which ends write
	stdout.flush()
	stderr.flush()
	const sshFailed, noProgram = 255, 127
	switch code := cmd.ProcessState.ExitCode(); {
	case code == sshFailed || code < 0:
		h.job.complain(h, "ssh failed: no connection, or it was lost, or a worker ended with code 255")
	case code == noProgram && !stdout.isUsed:
		h.job.complain(h, "golaunch was not found: install it there, on the PATH of ssh's commands")
	case code != 0:
		h.code = code
	default:
		if h.code = 0; err != nil { // the host's output was cut
			h.job.complain(h, err.Error())
		}
	}
}

// write sends the request and then lines, until the ssh command ends.
func (h *sshHost) write(stdin io.WriteCloser) {
	defer stdin.Close()
	text := h.request
	for {
		if _, err := stdin.Write(text); err != nil {
			return // the command has ended, and its exit code says why
		}
		select {
		case line := <-h.lines:
			text = []byte(line + "\n")
		case <-h.ctx.Done():
			return
		}
	}
}

// lineWriter prints whole lines of a host.
type lineWriter struct {
	host *sshHost
	to   *printer.Output
	rest []byte // the part of an incomplete line that was received

	isUsed bool // something was written
}

func (w *lineWriter) Write(text []byte) (int, error) {
	w.isUsed = true
	w.rest = append(w.rest, text...)
	if end := bytes.LastIndexByte(w.rest, '\n') + 1; end > 0 {
		w.to.Write(bytes.Clone(w.rest[:end]), w.host.ctx.Done())
		w.rest = append(w.rest[:0], w.rest[end:]...)
	}
	return len(text), nil
}

// flush prints an incomplete last line.
func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		w.to.Put(append(w.rest, '\n'))
	}
}

// shellQuote quotes text for a POSIX shell.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
