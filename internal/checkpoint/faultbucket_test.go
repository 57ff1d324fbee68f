package checkpoint

import (
	"context"
	"errors"
	"sync"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// faultBucket passes everything on to a bucket and fails where it is told to.
// Every call and every write counts as one operation.
type faultBucket struct {
	inner *blob.Bucket

	mu    sync.Mutex
	n     int   // operations so far
	at    int   // the operation that fails, counted from 1; 0 = none
	dead  bool  // all operations after it fail as well, as when the process dies
	err   error // what it fails with
	after bool  // the operation is done, and fails all the same
	cut   bool  // a write stores half and reports success
	ops   []string

	onOp func(n int) // if not nil, called for every operation
}

func (f *faultBucket) bucket() *blob.Bucket { return blob.NewBucket(f) }

// op counts an operation and reports how it fails.
func (f *faultBucket) op(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	f.ops = append(f.ops, name)
	if f.onOp != nil {
		f.onOp(f.n)
	}
	if f.at > 0 && (f.n == f.at || f.dead && f.n > f.at) {
		return f.err
	}
	return nil
}

// do runs an operation, before or after which the fault comes.
func (f *faultBucket) do(name string, op func() error) error {
	fault := f.op(name)
	if fault != nil && !f.after {
		return fault
	}
	if err := op(); err != nil {
		return err
	}
	return fault
}

func (f *faultBucket) ErrorCode(err error) gcerrors.ErrorCode { return gcerrors.Code(err) }
func (f *faultBucket) As(i any) bool                          { return f.inner.As(i) }
func (f *faultBucket) ErrorAs(err error, i any) bool          { return f.inner.ErrorAs(err, i) }
func (f *faultBucket) Close() error                           { return nil }

func (f *faultBucket) Attributes(ctx context.Context, key string) (out *driver.Attributes, err error) {
	err = f.do("attributes "+key, func() error {
		a, err := f.inner.Attributes(ctx, key)
		if err == nil {
			out = &driver.Attributes{Size: a.Size, ModTime: a.ModTime}
		}
		return err
	})
	return out, err
}

func (f *faultBucket) ListPaged(ctx context.Context, o *driver.ListOptions) (out *driver.ListPage, err error) {
	err = f.do("list "+o.Prefix, func() error {
		token := o.PageToken
		if len(token) == 0 {
			token = blob.FirstPageToken
		}
		size := o.PageSize
		if size == 0 || size > 2 {
			size = 2 // several pages, so that one may fail in the middle
		}
		objects, next, err := f.inner.ListPage(ctx, token, size, &blob.ListOptions{Prefix: o.Prefix})
		if err != nil {
			return err
		}
		out = &driver.ListPage{NextPageToken: next}
		for _, x := range objects {
			out.Objects = append(out.Objects, &driver.ListObject{Key: x.Key, ModTime: x.ModTime, Size: x.Size})
		}
		return nil
	})
	return out, err
}

type faultReader struct {
	*blob.Reader
	f *faultBucket
}

func (r faultReader) Read(p []byte) (int, error) {
	if err := r.f.op("read"); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (r faultReader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: r.Size(), ModTime: r.ModTime()}
}

func (f *faultBucket) NewRangeReader(ctx context.Context, key string, off, n int64, _ *driver.ReaderOptions) (out driver.Reader, err error) {
	err = f.do("open "+key, func() error {
		r, err := f.inner.NewRangeReader(ctx, key, off, n, nil)
		if err == nil {
			out = faultReader{r, f}
		}
		return err
	})
	if err != nil {
		if out != nil {
			out.Close()
		}
		return nil, err
	}
	return out, nil
}

type faultWriter struct {
	w      *blob.Writer
	f      *faultBucket
	cancel context.CancelFunc
}

func (w faultWriter) Write(p []byte) (int, error) {
	if err := w.f.op("write"); err != nil {
		if w.f.cut {
			w.w.Write(p[:len(p)/2])
			return len(p), nil
		}
		return 0, err
	}
	return w.w.Write(p)
}

func (w faultWriter) Close() error {
	defer w.cancel()
	fault := w.f.op("commit")
	if fault != nil && !w.f.after && !w.f.cut {
		w.cancel()
		w.w.Close()
		return fault
	}
	if err := w.w.Close(); err != nil || w.f.cut {
		return err
	}
	return fault
}

func (f *faultBucket) NewTypedWriter(ctx context.Context, key, _ string, o *driver.WriterOptions) (out driver.Writer, err error) {
	if err := f.op("create " + key); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w, err := f.inner.NewWriter(ctx, key, &blob.WriterOptions{
		DisableContentTypeDetection: true, IfNotExist: o.IfNotExist, BeforeWrite: o.BeforeWrite,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return faultWriter{w, f, cancel}, nil
}

func (f *faultBucket) Copy(context.Context, string, string, *driver.CopyOptions) error {
	return errors.New("copy is not used")
}

func (f *faultBucket) Delete(ctx context.Context, key string, _ *driver.DeleteOptions) error {
	return f.do("delete "+key, func() error { return f.inner.Delete(ctx, key) })
}

func (f *faultBucket) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", errors.New("signed URLs are not used")
}
