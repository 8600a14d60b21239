typedef int sl_placeholder_kernel;
