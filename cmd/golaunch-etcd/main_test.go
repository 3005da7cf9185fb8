package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// mainVar makes the test binary golaunch-etcd.
const mainVar = "GOLAUNCH_ETCD_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVar) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A user who starts golaunch-etcd learns that it is not for users. golaunch starts it with a pipe and no arguments.
func TestUsersAreTurnedAway(t *testing.T) {
	device, err := os.Open(os.DevNull) // as a terminal, it is a character device
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for _, test := range []struct {
		args  []string
		stdin io.Reader
		code  int
	}{
		{[]string{"--help"}, strings.NewReader(""), 2},
		{nil, device, 2},
		{nil, strings.NewReader(""), 0}, // a pipe that ends
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], test.args...)
		cmd.Env = append(os.Environ(), mainVar+"=1")
		cmd.Stdin = test.stdin
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run() // the code says how it ended
		isAnswered := strings.Contains(stderr.String(), "golaunch-etcd is started by golaunch --rdzv-backend etcd")
		if code := cmd.ProcessState.ExitCode(); code != test.code || isAnswered != (code == 2) {
			t.Errorf("%q: exit code %d, want %d; it printed %q", test.args, code, test.code, &stderr)
		}
	}
}
