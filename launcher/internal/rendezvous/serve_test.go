package rendezvous

import "testing"

func TestTCPStoreIsRecognized(t *testing.T) {
	for head, want := range map[[5]byte]bool{
		{3, 5, 0, 0, 0}:             true,  // PyTorch 1.x: ADD of the key init/
		{1, 29, 0, 0, 0}:            true,  // a torchrun agent of 1.x: COMPARE_SET
		{0, 0xce, 0xf7, 0x85, 0x3c}: true,  // PyTorch 2.x: VALIDATE
		{22, 3, 1, 2, 0}:            false, // TLS
		{'G', 'E', 'T', ' ', '/'}:   false,
		{0, 0, 0, 0, 0}:             false,
	} {
		if got := isTCPStore(head); got != want {
			t.Errorf("%v: %v, want %v", head, got, want)
		}
	}
}
