typedef int sl_placeholder_args;
