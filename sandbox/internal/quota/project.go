package quota

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of the kernel's interface for quotas that package unix does not have.
const (
	prjQuota      = 2
	qGetQuota     = 0x800007
	qSetQuota     = 0x800008
	qifBLimits    = 1
	qifILimits    = 4
	quotaBlock    = 1024
	fsGetXattr    = 0x801c581f
	fsSetXattr    = 0x401c5820
	projInherit   = 0x200
	firstProject  = 0x4000_0000
	projectNumber = 0x3fff_ffff
	projectTries  = 100
)

// dqblk is the kernel's struct if_dqblk.
type dqblk struct {
	bHardLimit, bSoftLimit, curSpace  uint64 // limits in blocks of 1 KiB, space in bytes
	iHardLimit, iSoftLimit, curInodes uint64
	bTime, iTime                      uint64
	valid                             uint32
	_                                 uint32
}

// fsxattr is the kernel's struct fsxattr.
type fsxattr struct {
	xflags, extSize, nExtents, projID, cowExtSize uint32
	_                                             [8]byte
}

// setProject gives a new directory a project of its own with a limit. All that is made
// below inherits it, and cannot be given another from within a user namespace.
func setProject(dir string, limit int64) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	for i := range uint32(projectTries) {
		id := firstProject + (h.Sum32()+i)&projectNumber
		var q dqblk
		if err := quotactl(f, qGetQuota, id, &q); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("set project quota: %w", err)
		}
		if q.bHardLimit != 0 || q.curSpace != 0 || q.curInodes != 0 {
			continue // somebody's
		}
		q = dqblk{bHardLimit: uint64(limit / quotaBlock), valid: qifBLimits}
		if err := quotactl(f, qSetQuota, id, &q); err != nil {
			return fmt.Errorf("set project quota: %w", err)
		}
		if err := ioctlFsxattr(f, fsSetXattr, &fsxattr{projID: id, xflags: projInherit}); err != nil {
			return fmt.Errorf("set project: %w", err)
		}
		return nil
	}
	return errors.New("set project quota: no project number is free")
}

// projectOf is the project of a directory that setProject gave it, else 0.
func projectOf(f *os.File) (uint32, error) {
	var x fsxattr
	err := ioctlFsxattr(f, fsGetXattr, &x)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return 0, nil // a file system without projects
	}
	if err != nil {
		return 0, err
	}
	if x.xflags&projInherit == 0 || x.projID < firstProject {
		return 0, nil
	}
	return x.projID, nil
}

// clearProject takes the limit off a directory's project, and the project off it.
func clearProject(dir string) error {
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	id, err := projectOf(f)
	if id == 0 || err != nil {
		return err
	}
	if err := quotactl(f, qSetQuota, id, &dqblk{valid: qifBLimits | qifILimits}); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("clear project quota: %w", err)
	}
	return nil
}

func projectUse(dir string) (Use, error) {
	f, err := os.Open(dir)
	if err != nil {
		return Use{}, fmt.Errorf("measure disk space: %w", err)
	}
	defer f.Close()
	id, err := projectOf(f)
	if id == 0 || err != nil {
		return Use{}, fmt.Errorf("measure disk space: %s has no project: %w", dir, errors.Join(err, os.ErrNotExist))
	}
	var q dqblk
	if err := quotactl(f, qGetQuota, id, &q); err != nil {
		return Use{}, fmt.Errorf("measure disk space: %w", err)
	}
	all := int64(q.bHardLimit * quotaBlock)
	return Use{Bytes: int64(q.curSpace), Full: all > 0 && isFull(all-int64(q.curSpace), all)}, nil
}

// quotactl asks the file system that a file is on.
func quotactl(f *os.File, cmd int, id uint32, q *dqblk) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), uintptr(cmd<<8|prjQuota), uintptr(id), uintptr(unsafe.Pointer(q)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func ioctlFsxattr(f *os.File, cmd uintptr, x *fsxattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), cmd, uintptr(unsafe.Pointer(x)))
	if errno != 0 {
		return errno
	}
	return nil
}
