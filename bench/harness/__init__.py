"""How a figure is come by: certificates, programs, the kernel's accounting, trials, reports."""
