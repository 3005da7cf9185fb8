package launcher

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/daemon"
)

func TestMain(m *testing.M) {
	daemon.Main()
	ReaperMain()
	testkit.Main(m, map[string]func(){
		"peers": testPeers, "survivor": testSurvivor, "chatter": testChatter, "dedicated": testDedicated, "recorder": testRecorder, "judge": testJudge, "reporter": testReporter,
		"agent": func() { // whose program cannot be a reaper, with one worker
			canReap.Store(false)
			_, err := Run(context.Background(), &Config{Args: []string{"bash", "-c", "echo pid $$; exec sleep 1000"}})
			check(err)
		},
		"printer": func() { // of a file
			text, err := os.ReadFile(os.Args[1])
			check(err)
			for _, f := range []*os.File{os.Stdout, os.Stderr} {
				_, err := f.Write(text)
				check(err)
			}
		},
		"panic": func() {
			fmt.Fprintln(os.Stderr, "about to fail")
			panic("bad batch")
		},
	})
}

// testJudge is set where there are judges: see TestDaemons.
var testJudge = func() {}

// testDedicated runs a job like golaunch does, with one worker that runs a script.
func testDedicated() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	_, err := Run(context.Background(), &Config{
		Args:            []string{"bash", "-c", os.Args[1]},
		Dedicated:       true,
		ShutdownTimeout: 200 * time.Millisecond,
		Signals:         signals,
	})
	os.Exit(ExitCode(err))
}

// testPeers is a job whose ranks notice a death by the end of a connection. Rank 2
// listens in a folder, and dies in the given way once all are connected. The other ranks then
// write an error file and exit with code 1.
func testPeers() {
	sock, death := filepath.Join(os.Args[1], "sock"), os.Args[2]
	if os.Getenv("RANK") == "2" {
		l, err := net.Listen("unix", sock+".new")
		check(err)
		check(os.Rename(sock+".new", sock))
		var conns []net.Conn
		for range 3 {
			c, err := l.Accept()
			check(err)
			conns = append(conns, c)
		}
		switch death {
		case "wait": // to be killed
			fmt.Println("connected")
			_, _ = io.ReadAll(conns[0])
		case "error-then-linger":
			writeErrorFile("the cause")
			for _, c := range conns {
				c.Close()
			}
			time.Sleep(soon) // a slow teardown, during which the peers exit; golaunch's SIGTERM ends it
			os.Exit(4)
		}
	}
	for {
		c, err := net.Dial("unix", sock)
		if err == nil {
			_, _ = io.ReadAll(c)
			writeErrorFile("a peer is gone")
			os.Exit(1)
		}
		time.Sleep(time.Millisecond)
	}
}

func writeErrorFile(message string) {
	data, err := json.Marshal(map[string]any{"message": map[string]any{
		"message":   message,
		"extraInfo": map[string]any{"timestamp": fmt.Sprintf("%.6f", float64(time.Now().UnixMicro())/1e6)},
	}})
	check(err)
	check(os.WriteFile(os.Getenv("TORCHELASTIC_ERROR_FILE"), data, 0o600))
}

// testRecorder records a call that does not end. When rank 3 is told to stop, it writes
// its record itself.
func testRecorder() {
	settings, err := jobenv.ReadFlight(os.LookupEnv)
	check(err)
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	check(err)
	signals := make(chan os.Signal, 1)
	if rank == 3 {
		signal.Notify(signals, syscall.SIGTERM)
	} else {
		signal.Notify(signals, syscall.SIGUSR2) // which nobody sends; a wait that can have no end is an error without cgo
	}
	r := flight.Open(flight.Identity{Rank: rank, WorldSize: 4}, settings, slog.Default())
	g := r.Group("default", rank, 4)
	g.Begin(&backend.Call{Seq: 1, Kind: backend.Barrier}, time.Now().UnixNano()).Running(time.Now())
	fmt.Println("recorded")
	<-signals
	r.Reason("told to stop", nil)
	dir, err := flight.Dir(settings)
	check(err)
	_, err = r.Dump().Write(dir)
	check(err)
	os.Exit(1)
}

const (
	chatterLines = 500
	chatterWidth = 100
)

// testChatter writes lines that a reader can check, on both streams at the same time, and
// in pieces.
func testChatter() {
	done := make(chan bool)
	for name, f := range map[string]*os.File{"out": os.Stdout, "err": os.Stderr} {
		go func() {
			for i := range chatterLines {
				line := fmt.Sprintf("<%s %s %d %s>\n", os.Getenv("RANK"), name, i, strings.Repeat("x", chatterWidth))
				_, err := f.WriteString(line[:30])
				check(err)
				_, err = f.WriteString(line[30:])
				check(err)
			}
			done <- true
		}()
	}
	<-done
	<-done
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
}
