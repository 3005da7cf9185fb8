// Package checkpoint saves and loads the state of a training run so that no crash loses the
// last complete checkpoint.
//
//	ck, err := checkpoint.Open(pg, "run1", checkpoint.Options{Keep: 3, Async: true})
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, ck.Close()) }()
//	var position data.Position
//	state := checkpoint.State{
//		Model: model, Optimizers: []checkpoint.Optimizer{opt},
//		Values: map[string]any{"position": &position, "scaler": scaler},
//	}
//	step, err := ck.Resume(ctx, state) // 0: there is no checkpoint
//	...
//	position = batch.After
//	err = ck.Save(ctx, step, state)
//
// # What lies in the folder
//
//	run1/latest                                          the name of the latest checkpoint
//	run1/step-00001200/manifest.json                     what it holds, with all checksums
//	run1/step-00001200/rank-00000-of-00002.safetensors   the share of each rank
//	run1/step-00001200/rank-00001-of-00002.safetensors
//	run1/.tmp-...                                        what is not complete
//
// Each rank writes a share: of what all ranks have, as many bytes as any other, and
// of what package ddp/zero divides, the elements that the rank has. Buffers of the model
// are rank 0's. The manifest lists each tensor with its parts, which are ranges of elements,
// so that any number of ranks, with or without package ddp/zero, reads the elements that it
// needs. It has a CRC-32C of each part and the SHA-256 of itself.
//
// The files are in the format of package safetensors, which PyTorch and Hugging Face
// read. [Export] makes one file of the weights, under their own names; [Import] makes a
// checkpoint of such a file. The command goddp checkpoint does both, and lists, verifies and
// compares.
//
// # Weights alone
//
// [LoadWeights] loads a safetensors file, or a checkpoint, into a model, in part if need be,
// such as a network that was trained before under a head of another size. Its report says what
// fitted:
//
//	report, err := checkpoint.LoadWeights("resnet18.safetensors", net)
//	if err != nil {
//		return err
//	}
//	log.Printf("%d weights loaded, not in the file: %q, of another shape: %v", len(report.Loaded), report.Missing, report.Mismatched)
//
// [Report.Complete] is an error unless each weight was loaded and the file has no others.
//
// # When a checkpoint is complete
//
// Each rank writes its file into a temporary folder, syncs the file and the folder, and then
// tells rank 0. When all have, rank 0 writes the manifest, syncs it and the folder, renames
// the folder, syncs the folder above, and replaces the file latest in the same way. So what
// has a manifest under its final name is durable as a whole, and a process or a machine that
// fails at any moment leaves the checkpoint before. A second checkpoint of a step
// is step-00001200.1: no checkpoint is ever in the way of another.
//
// Then rank 0 deletes all but the last Options.Keep, and before the first of these it
// reads the new one back and compares the checksums. If they differ it deletes nothing.
//
// # Network file systems
//
// Ranks on several hosts need a folder that all of them see. Of its file system the package needs
// what NFS promises: a host that opens a file or folder sees what others had synced and closed
// before, and a rename is one step. Whoever looks for another host's file opens the folder first,
// because names and sizes may come from a cache otherwise. A file whose handle has become stale is
// opened once more. The errors of writes count wherever they come: from the write, the sync or the
// close. Deletions that fail, as NFS keeps a folder while a process has a file in it open, are logged
// and tried again by the next Open. There are no locks: one job at a time uses a folder.
//
// # Asynchronous saves
//
// With Options.Async, Save enqueues copies of this rank's share to page-locked memory on a
// stream of its own, behind what the compute stream was given, and returns. The forward and
// backward passes of the next step run beside these copies. The next update is enqueued behind
// them ([autograd.HoldWrites]), so it cannot overwrite what they read, and the host waits for
// nothing. A goroutine does the rest: it waits for the copies, writes, and meets those of the
// other ranks in the group's store ([comm.ProcessGroup.Store]). No collective runs on another goroutine than
// the program's. A rank that dies leaves the others waiting, for Options.Timeout at most, and
// in Close, where the group is broken, for some seconds. [Manager.Stats] tells how long
// the last save took; bench/checkpoint measures what it costs a step.
//
// # Failure
//
// A save that fails, because the disk is full or a rank died, returns its error on all ranks
// and changes nothing. Resume takes the checkpoint before, where the latest is corrupt,
// and says so in the log.
//
// A job that golaunch restarts (--max-restarts) calls Resume as in its first attempt.
// After [ddp.Recover] the program opens a manager in the new group. Where no rank is whole
// ([ddp.LostStateError]) it resumes from the latest checkpoint instead.
package checkpoint
