package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/store"
)

var (
	runs     = flag.Int("runs", 3, "number of runs for each attacker")
	steps    = flag.Int("steps", 2000, "number of training steps of a run")
	size     = flag.Int("size", 320, "width of the model")
	batch    = flag.Int("batch", 64, "number of samples per rank and step")
	spread   = flag.Float64("spread", 8, "duration of an attack in seconds")
	golaunch = flag.String("golaunch", "", "the golaunch `FILE` to attack; \"\" builds this tree's")
)

const (
	maxRatio  = 1.2   // of the 99th percentiles of a step's time
	maxMemory = 200e6 // bytes of a golaunch process
	otherUser = 54321 // the uid of the second attacker
)

// roleVar is the environment variable that makes this program an attacker or a store.
const roleVar = "GODDP_HOSTILE_ROLE"

func main() {
	switch os.Getenv(roleVar) {
	case "attack":
		exit(attack(os.Args[1], os.Args[2], os.Args[3]))
	case "store":
		exit(serve())
	}
	flag.Parse()
	exit(compare())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve serves the store that is unrelated to the job, until stdin ends. It prints the store's address.
func serve() error {
	s, err := store.Listen("", &store.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println(s.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// binaries are the paths of the programs, in a folder that every user can read.
type binaries struct{ dir, golaunch, mlp, self string }

func build() (b binaries, err error) {
	if b.dir, err = os.MkdirTemp("", "hostile"); err != nil {
		return b, err
	}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return b, err
	}
	cmd := exec.Command("go", "build", "-o", b.dir, "./cmd/golaunch", "./examples/mlp", "./test/hostile")
	if out, err := cmd.CombinedOutput(); err != nil {
		return b, fmt.Errorf("building: %w\n%s", err, out)
	}
	b.golaunch, b.mlp, b.self = filepath.Join(b.dir, "golaunch"), filepath.Join(b.dir, "mlp"), filepath.Join(b.dir, "hostile")
	if *golaunch != "" {
		b.golaunch = *golaunch
	}
	return b, nil
}

func compare() error {
	b, err := build()
	if b.dir != "" {
		defer os.RemoveAll(b.dir)
	}
	if err != nil {
		return err
	}
	quiet, err := b.run(nil)
	if err != nil {
		return fmt.Errorf("the undisturbed run: %w", err)
	}
	fmt.Printf("undisturbed: %d steps, p50 %.2f ms, p99 %.2f ms, golaunch's peak memory %.0f MB\n\n",
		*steps, percentile(quiet.took[0], 50), percentile(quiet.took[0], 99), quiet.memory/1e6)
	users := []uint32{uint32(os.Getuid())}
	if os.Getuid() == 0 {
		users = append(users, otherUser)
	}
	fmt.Println("| attacker | same losses | p99 of a step, other store | p99, job's store | ratio (of the runs) | golaunch's peak memory |")
	fmt.Println("|---|---|---|---|---|---|")
	var failures []error
	for _, uid := range users {
		err := b.attacker(uid, quiet)
		if err != nil {
			failures = append(failures, fmt.Errorf("attacker of uid %d: %w", uid, err))
		}
	}
	return errors.Join(failures...)
}

// attacker runs the attacks of a process with this uid, compares steps and losses, and prints a row of
// the table. It returns an error for each limit that is exceeded.
func (b *binaries) attacker(uid uint32, quiet *result) error {
	var took [2][]float64 // ms, of the steps under attack on the other store, and on the job's
	var ratios []float64  // of each run's 99th percentiles
	var memory float64
	same := 0
	for run := range *runs {
		r, err := b.run(&uid)
		if err != nil {
			return err
		}
		if difference := compareLosses(quiet.losses, r.losses); difference == "" {
			same++
		} else {
			fmt.Fprintf(os.Stderr, "run %d: %s\n", run, difference)
		}
		for at := range took {
			took[at] = append(took[at], r.took[at]...)
		}
		ratios = append(ratios, percentile(r.took[1], 99)/percentile(r.took[0], 99))
		memory = max(memory, r.memory)
	}
	who := "same uid"
	if uid != uint32(os.Getuid()) {
		who = "another uid"
	}
	baseline, attacked := percentile(took[0], 99), percentile(took[1], 99)
	fmt.Printf("| %s | %d of %d runs | %.2f ms | %.2f ms | %.2f (%.2f to %.2f) | %.0f MB |\n",
		who, same, *runs, baseline, attacked, attacked/baseline, slices.Min(ratios), slices.Max(ratios), memory/1e6)
	var failures []error
	if same != *runs {
		failures = append(failures, fmt.Errorf("%d of %d runs have the losses of the undisturbed run", same, *runs))
	}
	if attacked/baseline > maxRatio {
		failures = append(failures, fmt.Errorf("the 99th percentile of a step is %.2f times that under the attack on the other store, at most %v", attacked/baseline, maxRatio))
	}
	if memory >= maxMemory {
		failures = append(failures, fmt.Errorf("golaunch took %.0f MB, at most %.0f", memory/1e6, maxMemory/1e6))
	}
	return errors.Join(failures...)
}

// compareLosses describes how a run's losses differ from those of the undisturbed run. It returns "" if
// they are equal.
func compareLosses(want, got []string) string {
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			return fmt.Sprintf("%d lines, want %d; from line %d on %q, want %q", len(got), len(want), i, got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
		}
	}
	return ""
}

func percentile(v []float64, p int) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, len(s)*p/100)]
}

// result is the result of a run.
type result struct {
	losses []string     // of rank 0's steps; then a digest of each rank's parameters
	took   [2][]float64 // ms, of the steps under attack on the other store, and on the job's
	memory float64      // peak of a golaunch process, in bytes
}

// The attacker changes to the other store every window steps. The first settling steps after each
// change are not measured.
const (
	window   = 20
	settling = 4
)

// run trains once. Unless uid is nil, a process with that uid attacks the two stores.
func (b *binaries) run(uid *uint32) (*result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	other, err := b.start(ctx, "store", uint32(os.Getuid()))
	if err != nil {
		return nil, err
	}
	defer other.end()
	otherAddr, err := other.line()
	if err != nil {
		return nil, err
	}
	job := exec.CommandContext(ctx, b.golaunch, "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", strconv.Itoa(port),
		b.mlp, "--json", "--seed", "7", "--size", strconv.Itoa(*size), "--batch", strconv.Itoa(*batch), "--steps", strconv.Itoa(*steps))
	job.Env = append(os.Environ(), "GODDP_DEVICE=cpu")
	var stderr bytes.Buffer
	job.Stderr = &stderr
	out, err := job.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := job.Start(); err != nil {
		return nil, err
	}
	r := &result{}
	measured := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(measured)
		r.memory = peakMemory(b.golaunch, ended)
	}()
	var attacker *process
	var digests []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var line struct {
			Step   *int
			Rank   *int
			Loss   json.RawMessage
			MS     float64
			Params string `json:"params_sha256"`
		}
		text := lines.Text()
		if i := strings.IndexByte(text, '{'); i < 0 || json.Unmarshal([]byte(text[i:]), &line) != nil {
			continue
		}
		switch {
		case line.Step != nil:
			r.losses = append(r.losses, string(line.Loss))
			if uid != nil && attacker == nil {
				jobAddr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
				if attacker, err = b.start(ctx, "attack", *uid, jobAddr, otherAddr, fmt.Sprint(*spread)); err != nil {
					cancel()
				}
			}
			at := *line.Step / window % 2
			if *line.Step%window >= settling {
				r.took[at] = append(r.took[at], line.MS)
			}
			if *line.Step%window == window-1 && attacker != nil {
				attacker.in.Write([]byte{byte('0' + 1 - at)}) // chooses the store of the next window
			}
		case line.Rank != nil:
			digests = append(digests, fmt.Sprint(*line.Rank, line.Params))
		}
	}
	slices.Sort(digests) // the ranks print them in any order
	r.losses = append(r.losses, digests...)
	jobErr := job.Wait()
	close(ended)
	<-measured
	if attacker != nil {
		said := strings.TrimSpace(attacker.end())
		if !strings.HasPrefix(said, "done") {
			err = errors.Join(err, errors.New("the job ended before the attack: use more -steps"))
		}
		fmt.Fprintln(os.Stderr, said)
	}
	if err := errors.Join(err, jobErr); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, stderr.String())
	}
	return r, nil
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// peakMemory watches the processes that run a program until ended is closed. It returns the largest of
// their memory peaks, in bytes.
func peakMemory(program string, ended <-chan struct{}) (peak float64) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		exes, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range exes {
			if path, err := os.Readlink(exe); err != nil || path != program {
				continue
			}
			status, _ := os.ReadFile(filepath.Join(filepath.Dir(exe), "status")) // empty if the process has just ended
			var kib float64
			if _, rest, ok := strings.Cut(string(status), "VmHWM:"); ok {
				fmt.Sscan(rest, &kib)
			}
			peak = max(peak, kib*1024)
		}
		select {
		case <-ended:
			return peak
		case <-tick.C:
		}
	}
}

// process is a process of this program in another role.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (b *binaries) start(ctx context.Context, role string, uid uint32, args ...string) (*process, error) {
	cmd := exec.CommandContext(ctx, b.self, args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Stderr = os.Stderr
	if uid != uint32(os.Getuid()) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{cmd, in, bufio.NewReader(out)}, cmd.Start()
}

func (p *process) line() (string, error) {
	s, err := p.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// end ends the process and returns the rest of its output.
func (p *process) end() string {
	p.in.Close()
	time.AfterFunc(5*time.Second, func() { p.cmd.Process.Kill() })
	rest, _ := io.ReadAll(p.out)
	p.cmd.Wait()
	return string(rest)
}
